/*
 * state.h - the complete state of a training run, read and written by name in host memory.
 *
 * An entry is a piece of the state of a data-parallel model and of the optimizer that is open for
 * it. All modes, precisions and numbers of devices have the same entries with the same shapes, so
 * the state of one run can be given to another, whatever either of them runs on. Only the two
 * entries of a loss scale are missing in a run without a dynamic one: writing them is
 * EK_ERR_NOT_FOUND, and a load skips them (checkpoint.h).
 *
 *     name                               what
 *     blocks.0.mlp.0.weight              a parameter, or a buffer
 *     adamw/m/blocks.0.mlp.0.weight      a state of the optimizer's rule: KIND/STATE/PARAMETER
 *     run/step                           i64: steps taken; the masks and the schedule follow it
 *     run/seed                           i64: the 64 bits of the seed of random masks
 *     run/loss_scale                     f64: of the next step, where it is dynamic (loss_scale.h)
 *     run/good_steps                     i64: in a row, since the same scale changed
 *
 * Tied parameters are one entry, under the name of their source; the other name finds it too. Those
 * of `run` are numbers of the host, also for a model on `plan` devices; entries on such devices are
 * neither read nor written, and the host's memory stays as it is. The program must provide again
 * what is not state: the module, the options (mode, type, schedule, the rule's constants, patterns)
 * and the data. A frozen parameter is an entry, but has no state of the optimizer: a run goes on
 * with the same parameters frozen.
 *
 * To copy the state of one run into the program's memory, and from there into another run:
 *
 *     for (size_t i = 0; i < ek_state_count(from); i++) {
 *       ek_state_info info;
 *       EK_TRY(ek_state_entry(&info, from, i));
 *       ek_tensor host = info.like;
 *       host.data = calloc((size_t)ek_tensor_count(&host) + 1, ek_type_size(host.type));
 *       if (host.data == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory");
 *       ek_status status = ek_state_read(&host, from, info.name);
 *       if (status == EK_OK) status = ek_state_write(to, info.name, &host);
 *       free(host.data);
 *       EK_TRY(status);
 *     }
 *
 * Steps that are taken from there on equal those of a run that was never interrupted: bit for bit
 * with the same mode and devices, else to rounding (docs/numerics.md). Copy between steps: what a
 * step has accumulated is not part of the state.
 *
 * A torn model (EK_ERR_TORN) cannot be read. It can be written, and is whole again when every entry
 * that ek_state_count() counts has been written since it tore; gradients that its last step had
 * accumulated are dropped. If a device is dead for good, writes fail, and so does every other call.
 */
#ifndef EVENKEEL_STATE_H
#define EVENKEEL_STATE_H

#include <evenkeel/data_parallel_model.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_state_kind {
  EK_STATE_KIND_PARAMETER = 0,
  EK_STATE_KIND_BUFFER = 1,
  EK_STATE_KIND_OPTIMIZER = 2, /* zeros before the first step, which does not read them */
  EK_STATE_KIND_STEP = 3,
  EK_STATE_KIND_SEED = 4,
  EK_STATE_KIND_LOSS_SCALE = 5, /* a power of two within the bounds of loss_scale.h */
  EK_STATE_KIND_GOOD_STEPS = 6
} ek_state_kind;

/* The longest name, with a final NUL. */
#define EK_STATE_NAME_SIZE 640

typedef struct ek_state_info {
  char name[EK_STATE_NAME_SIZE];
  ek_state_kind kind;
  /*
   * Master: on device 0. Replicated: a copy on every device (or, of those of `run`, on the host).
   * Sharded: every device has a share.
   */
  ek_state_placement placement;
  ek_tensor like; /* its type and shape, as a host tensor without data */
} ek_state_info;

/* Entries of the model, and of the optimizer that is open for it; 0 for NULL. */
EK_API size_t ek_state_count(const ek_data_parallel_model *model);
/* Parameters and buffers in the order of their declaration, the states of the rule one after the
 * other, then those of `run`. EK_ERR_INVALID_ARGUMENT outside. */
EK_API EK_CHECKED ek_status ek_state_entry(ek_state_info *info, const ek_data_parallel_model *model,
                                           size_t index);
/* EK_ERR_NOT_FOUND. */
EK_API EK_CHECKED ek_status ek_state_find(ek_state_info *info, const ek_data_parallel_model *model,
                                          const char *name);

/*
 * Copies a whole entry into, or from, host memory of its shape, or flat: rank 1 with as many
 * elements. The host tensor has the type of the entry; of a parameter, a buffer or a state of the
 * optimizer, which have floating types, it may have any floating type: each element is widened, or
 * rounded once to nearest. Such a copy goes through the stack in pieces and is slower. A write that
 * fails on the way to the devices tears the model, as a failed update does. Results that a running
 * step has computed already stay as they are.
 * EK_ERR_NOT_FOUND  no such entry
 * EK_ERR_TYPE       another type, and one of the two is not floating
 * EK_ERR_SHAPE      another shape; nothing was touched in either case
 * Reading what is cut over the devices of several processes (world.h) is a call of all of them, and
 * all get the whole entry.
 */
EK_API EK_CHECKED ek_status ek_state_read(ek_tensor *host, const ek_data_parallel_model *model,
                                          const char *name);
/* Elements first, first + 1, ... of an entry, row after row, as many as a host tensor of rank 1
 * has: a large entry in pieces. EK_ERR_SHAPE if it has fewer. */
EK_API EK_CHECKED ek_status ek_state_read_range(ek_tensor *host,
                                                const ek_data_parallel_model *model,
                                                const char *name, int64_t first);
/* The reverse of ek_state_read(), with the same errors. */
EK_API EK_CHECKED ek_status ek_state_write(ek_data_parallel_model *model, const char *name,
                                           const ek_tensor *host);
/* Elements first, first + 1, ... of an entry, as many as a host tensor of rank 1 has; the others
 * stay. An entry of a torn model counts as written when its last element is. EK_ERR_SHAPE for a
 * range that the entry does not have. */
EK_API EK_CHECKED ek_status ek_state_write_range(ek_data_parallel_model *model, const char *name,
                                                 const ek_tensor *host, int64_t first);

EK_END_DECLARATIONS

#endif /* EVENKEEL_STATE_H */
