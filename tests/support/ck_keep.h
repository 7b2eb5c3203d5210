/*
 * ck_keep.h - what a test opens is freed when the test ends.
 *
 *     CK_OPENED(ek_module *, gpt, ek_gpt_create(&gpt, &options));
 *     ek_tensor x = ck_keep(made_by_another_function());
 *     double *values = ck_array(count, sizeof *values);
 *
 * Kept things are freed in reverse order after the test, whether it passed or failed, and a group
 * is checked to hold no memory first. The helpers' groups, batches, trainings and rigs are kept
 * from the start. A test may free a kept thing itself at any time: in tests the names of the
 * library's frees stand for functions that also take the thing out of the list. A loop that opens
 * much in each pass, and a helper that is called often, release what they opened:
 *
 *     const size_t mark = ck_mark();
 *     ...
 *     ck_release(mark);
 *
 * and what is opened by CK_SCOPED(), CK_HELD() and CK_SCENE() goes at the end of its block. A free
 * takes the newest entry of the thing out, also a free in the destructor of a test's own module: of
 * a child that such a module shares, the test frees its own reference itself, and keeps none.
 */
#ifndef CK_KEEP_H
#define CK_KEEP_H

#include <stddef.h>
#include <stdint.h>

#include <evenkeel/evenkeel.h>

/* Handles that are also closed, with a status; the others; all of them. */
#define CK_CLOSED_HANDLES(X) X(group) X(metrics) X(trainer)
#define CK_PLAIN_HANDLES(X)                                                                        \
  X(communicator) X(criterion) X(data_parallel_criterion) X(data_parallel_model)                   \
  X(data_parallel_optimizer) X(event) X(data_loader) X(module) X(optimizer) X(pass) X(reducer)     \
  X(replica) X(safetensors) X(safetensors_writer) X(source)
#define CK_HANDLES(X) CK_PLAIN_HANDLES(X) CK_CLOSED_HANDLES(X)

#define CK_DECLARE_KEEP(noun) ek_##noun *ck_keep_##noun(ek_##noun *noun);
#define CK_DECLARE_FREE(noun) void ck_free_##noun(ek_##noun *noun);
#define CK_DECLARE_CLOSE(noun) ek_status ck_close_##noun(ek_##noun *noun);
CK_HANDLES(CK_DECLARE_KEEP)
CK_HANDLES(CK_DECLARE_FREE)
CK_CLOSED_HANDLES(CK_DECLARE_CLOSE)
ek_tensor ck_keep_tensor(ek_tensor tensor);
void ck_free_tensor(ek_tensor *tensor);
ek_shards ck_keep_shards(ek_shards shards);
void ck_free_shards(ek_shards *shards);

/* Keeps a handle, a tensor or shards, and gives back its argument. NULL and zeros are legal. */
#define CK_KEEP_HANDLE(noun) ek_##noun * : ck_keep_##noun,
#define ck_keep(thing)                                                                             \
  _Generic((thing), CK_HANDLES(CK_KEEP_HANDLE)        \
               ek_tensor: ck_keep_tensor,                                                          \
           ek_shards: ck_keep_shards)(thing)

/* Declares a variable that a call, which must succeed, fills. */
#define CK_GOT(type, name, call)                                                                   \
  type name = {0};                                                                                 \
  ck_ok(call)

/* The same with a call that gives nothing back. */
#define CK_SET_UP(type, name, call)                                                                \
  type name;                                                                                       \
  call

/* The same, and what the call keeps goes at the end of the block. */
#define CK_SCENE(type, name, call)                                                                 \
  struct ck_scope name##_scope CK_AT_THE_END = {ck_kept_ever(), 0};                                \
  CK_SET_UP(type, name, call);                                                                     \
  name##_scope.end = ck_kept_ever()

/* Declares a variable that a call, which must succeed, opens; it is kept. */
#define CK_OPENED(type, name, call)                                                                \
  CK_GOT(type, name, call);                                                                        \
  ck_keep(name)

/* The same, freed at the end of the block: for helpers and in loops. */
#define CK_SCOPED(type, name, call)                                                                \
  struct ck_scope name##_scope CK_AT_THE_END = {ck_kept_ever(), 0};                                \
  CK_OPENED(type, name, call);                                                                     \
  name##_scope.end = ck_kept_ever()

/* The same with what an expression gives, such as ck_open(), ck_upload() and ck_array(). */
#define CK_HELD(type, name, expression)                                                            \
  struct ck_scope name##_scope CK_AT_THE_END = {ck_kept_ever(), 0};                                \
  type name = expression;                                                                          \
  name##_scope.end = ck_kept_ever()

/* A call that must succeed, and what it opened, such as a member of a struct, which is kept. */
#define ck_kept(call, thing)                                                                       \
  do {                                                                                             \
    ck_ok(call);                                                                                   \
    ck_keep(thing);                                                                                \
  } while (0)

/* Of all that is ever kept, in its order, numbers `first` .. `end` - 1. */
struct ck_scope {
  uint64_t first, end;
};
#define CK_AT_THE_END __attribute__((cleanup(ck_scope_end)))
uint64_t ck_kept_ever(void);
void ck_scope_end(const struct ck_scope *scope);

/* Zeroed memory that is kept; never NULL. ck_drop() frees it early. */
void *ck_array(size_t count, size_t size);
void ck_drop(void *array);
/* How many elements such an array has. */
int64_t ck_count(const void *array);
/* A text that is kept, as printf() would say it. */
const char *ck_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For helpers with an object of their own: release(thing) when the test ends; and no longer. */
void ck_keep_by(void *thing, void (*release)(void *thing));
void ck_forget(const void *thing);

/* An environment variable until the test ends. */
void ck_variable(const char *name, const char *value);

/* How much is kept, and freeing all that has been kept since. */
size_t ck_mark(void);
void ck_release(size_t mark);
/* What every test case does before and after each test. */
void ck_keep_nothing(void);
void ck_release_all(void);

/* From here on a free or close in a test also takes the thing out of the list. */
#ifndef CK_REAL_FREES
#define ek_communicator_free ck_free_communicator
#define ek_criterion_free ck_free_criterion
#define ek_data_parallel_criterion_free ck_free_data_parallel_criterion
#define ek_data_parallel_model_free ck_free_data_parallel_model
#define ek_data_parallel_optimizer_free ck_free_data_parallel_optimizer
#define ek_event_free ck_free_event
#define ek_group_close ck_close_group
#define ek_group_free ck_free_group
#define ek_data_loader_free ck_free_data_loader
#define ek_metrics_close ck_close_metrics
#define ek_metrics_free ck_free_metrics
#define ek_module_free ck_free_module
#define ek_optimizer_free ck_free_optimizer
#define ek_pass_free ck_free_pass
#define ek_reducer_free ck_free_reducer
#define ek_replica_free ck_free_replica
#define ek_safetensors_free ck_free_safetensors
#define ek_safetensors_writer_free ck_free_safetensors_writer
#define ek_shards_free ck_free_shards
#define ek_source_free ck_free_source
#define ek_tensor_free ck_free_tensor
#define ek_trainer_close ck_close_trainer
#define ek_trainer_free ck_free_trainer
#endif

/*
 * A variable that is freed at the end of its block, whatever that was: for functions that give a
 * status back instead of asserting.
 *
 *     CK_FREED(tensor) x = {0}, y = {0};
 *     CK_FREED(module) *module = NULL;
 *     EK_TRY(...);
 */
#define CK_FREED(noun) __attribute__((cleanup(ck_freed_##noun))) ek_##noun
#define CK_DEFINE_FREED(noun)                                                                      \
  static inline void ck_freed_##noun(ek_##noun **noun) { ck_free_##noun(*noun); }
CK_HANDLES(CK_DEFINE_FREED)
static inline void ck_freed_tensor(ek_tensor *tensor) { ck_free_tensor(tensor); }
static inline void ck_freed_shards(ek_shards *shards) { ck_free_shards(shards); }

#endif /* CK_KEEP_H */
