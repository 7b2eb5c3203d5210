/*
 * bed.h - runs a module for ek_module_check() on rows of inputs that it generates, and copies the
 * results to the host as doubles.
 *
 * Inputs, parameters and the factors R of the outputs are functions of the seed and of an element's
 * number alone, so they are the same for every cut of the rows and every type; f32 represents them
 * exactly. The loss is the sum of R * output, so R is the gradient of the outputs. The outputs of a
 * criterion are its totals, whose weights have no gradient, or the losses of rows if it gives them.
 */
#ifndef EK_BED_H
#define EK_BED_H

#include <evenkeel/communicator.h>
#include <evenkeel/module_check.h>
#include <evenkeel/pass.h>

/* The most inputs of a module, targets included. */
enum { EK__CHECK_INPUTS = 2 * EK_MAX_TENSORS };

struct ek__values {
  double *data; /* NULL: there are none */
  int64_t count;
};

/* The results of one run. */
union ek__results {
  struct {
    struct ek__values output[EK_MAX_TENSORS], grad_input[EK__CHECK_INPUTS];
    struct ek__values gradient; /* flat, as in the replica */
  };
  struct ek__values all[EK_MAX_TENSORS + EK__CHECK_INPUTS + 1];
};

struct ek__trial {
  const int64_t *offsets; /* samples, one more than there are devices; NULL: all on device 0 */
  bool training, gradient, backward, grad_inputs, accumulate;
  bool empty;    /* device 0 runs also without rows */
  bool together; /* over all devices: a collective module sums over them */
  bool inspect;  /* what the module may not write is compared */
  uint32_t step;
  uint64_t fail_at;                   /* this allocation of the pass fails; 0: none */
  ek_pass_complete_function complete; /* with the part of the device as context */
};

struct ek__bed;

struct ek__bed_part { /* one device */
  struct ek__bed *bed;
  ek_replica *replica;
  union ek__results results;
  struct ek__values seen; /* gradients when they were said to be complete */
  int *completions;       /* by parameter */
  double size;            /* sum of |R * output| */
  uint64_t saved;         /* bytes that a pass kept for a backward that did not run */
  double loss;
};

struct ek__bed {
  ek_module *module;
  const ek_check_input *inputs;
  const ek_module_check_options *options;
  ek_type type;           /* of parameters and inputs */
  ek_precision precision; /* of 16 bits that the module computes in, or the default */
  ek_group *group;
  ek_communicator *communicator; /* of a collective module */
  bool collective;
  size_t devices;
  bool bare;               /* set before it is opened: memory without guards, to the byte */
  int64_t samples;
  int64_t *offsets; /* for a trial; zeros */
  struct ek__values input[EK__CHECK_INPUTS], parameters;
  struct ek__bed_part *parts;
  const struct ek__trial *trial; /* that runs */
};

/* Opens a group of its own, with guards beside each tensor, and a replica on each device.
 * EK_ERR_UNSUPPORTED if the module, or the devices, do not compute in `type`. The bed is one of
 * zeros, or with `bare` alone; a bed of zeros may be closed. */
ek_status ek__bed_open(struct ek__bed *bed, ek_module *module, const char *devices, ek_type type,
                       const ek_check_input *inputs, const ek_module_check_options *options);
/* Gives all replicas the parameters of the options. Before that they hold initial values. */
ek_status ek__bed_prepare(struct ek__bed *bed);
ek_status ek__bed_close(struct ek__bed *bed, ek_status status);

/* Runs the module; results are in the parts until the next run. */
ek_status ek__bed_run(struct ek__bed *bed, const struct ek__trial *trial);

/* The results of the last run, put together: rows one after the other, gradients added. *results
 * are the caller's to free. */
ek_status ek__bed_collect(union ek__results *results, struct ek__bed *bed);
void ek__results_free(union ek__results *results);

/* Writes the bed's parameter number `index` to device 0. */
ek_status ek__bed_store(struct ek__bed *bed, size_t index);

/* Copies a tensor of any type but i64 to doubles. */
ek_status ek__bed_read(double *values, const ek_tensor *tensor);

/* Zeros; the caller frees values->data. */
ek_status ek__bed_values(struct ek__values *values, int64_t count);

#endif /* EK_BED_H */
