/*
 * pass_internal.h - a pass from the inside: shared by pass.c, what it gives to a module, run.c,
 * which runs modules, children.c, which is asked to, and contract.c, which checks what they do.
 */
#ifndef EK_PASS_INTERNAL_H
#define EK_PASS_INTERNAL_H

#include "module/lender.h"
#include "module/replica_internal.h"

enum ek__pass_stage {
  EK__PASS_OPENED,
  EK__PASS_RAN_FORWARD,
  EK__PASS_RAN_BACKWARD,
  EK__PASS_BROKEN
};

/*
 * The conversions for a module that runs in another type than its caller, or for a pass whose
 * tensors are not of its type: cast.c.
 */
struct ek__cast {
  uint32_t inputs; /* bit i: input i was converted, from the type */
  ek_type from;
  ek_type outputs; /* the type that floating outputs are converted to; 0: they stay */
};

/*
 * The frame of a running function of a module, or of a child that it has entered; if none runs, the
 * outermost, that of the root. The frame of a function is the first of two in an array: the second
 * is for the child.
 */
struct ek__frame {
  const struct ek__node *node;
  struct ek__frame *below; /* of the caller */
  bool entered;            /* a child whose work the function of the frame below does */
  ek_precision precision;  /* it runs in */
  ek_precision children;   /* they are to run in: another where it knows f32 alone */
  bool saving;             /* a backward of its own follows, or this is one */
  bool backward;           /* this is a backward, or runs within one */
  bool unread;             /* of a forward: what it gives is not read */
  bool leaves_sum;         /* of a forward: its chain may leave its last addition open */
  const ek_tensor *inputs; /* of a forward, loans of its caller */
  ek_promise promise;      /* of its caller; of a backward: to its forward */
  bool written;            /* forward has written the gradients over the inputs */
  size_t floor;            /* saved tensors below are not its own */
  size_t records;          /* records below are not its children's */
  size_t recipe;           /* for its input; EK__NO_RECIPE: that is not made again */
  size_t kept;             /* of a maker: 1 + the record of its first forward, or 0 */
  size_t converted;        /* parameters below were not converted for it: cast.c */
  struct ek__cast cast;    /* of a forward */
  struct ek__workspace {
    bool taken;
    uint64_t before; /* how much was held then */
  } workspace;
};

/* The forward of a module whose backward has not come. */
struct ek__record {
  const struct ek__node *node;
  ek_precision precision, children; /* of its frame */
  bool saved;
  ek_promise promise; /* to it; a place for totals is not kept */
  bool written;       /* it has written its gradients: they are all that is saved */
  struct ek__cast cast;
  size_t below, above; /* saved tensors when forward began, and when it ended */
  size_t extents;      /* where those of its inputs begin, and after them of its outputs */
};

/* Runs a module again in backward, without saving: one input and one output. */
struct ek__recipe;
typedef ek_status (*ek__run_maker)(ek_pass *pass, const struct ek__recipe *recipe, ek_tensor *made);

/* How to make a tensor again instead of saving it. */
struct ek__recipe {
  ek__run_maker run;
  const struct ek__node *maker;
  ek_precision outer, children; /* of what it is given, and what its children are to run in */
  size_t record;           /* of the maker's forward; EK__NO_RECORD */
  bool activated;          /* the tensor is this activation of what the maker gives */
  ek_activation activation;
  ek_tensor from;          /* what it runs on */
  ek_tensor like;          /* the tensor, without a reference: it is known by its place */
  ek_tensor made;          /* once it was, until it is not needed any more */
  size_t pending;          /* how often it is on the stack of saved tensors */
  bool open;               /* the module whose input it is runs forward */
};

/* What makes the sums of modules if no communicator does: the passes of a device whose batch is
 * cut finer than by devices (parallel/lockstep.c). */
struct ek__exchange {
  ek_status (*all_reduce)(struct ek__exchange *self, ek_tensor *tensor);
};

/* An addition that a chain has left to the next one (chain_forward.c): one term, known by its
 * place, where the sum will be, without a reference; and the other. */
struct ek__open_sum {
  ek_tensor place, residual;
};

/* The rest of a backward, and what it needs. */
struct ek__postponed {
  const struct ek__node *node; /* NULL: nothing is postponed */
  ek_precision precision, children; /* of its frame */
  ek_tensor kept[EK_MAX_POSTPONED];
  ek_status (*run)(ek_pass *pass);
};

struct ek_pass {
  struct ek__spare spare; /* once it was freed; the replica keeps it, tables included */
  ek_replica *replica;
  struct ek__lender *lender;     /* NULL: the replica holds everything whole */
  struct ek__exchange *exchange; /* a loan, set after the pass is opened; NULL: none */
  ek_pass_options options;
  enum ek__pass_stage stage;
  struct ek__frame outermost[2], *frame; /* the top; those below are on the C stack */
  const ek_memory *lent[EK_MAX_TENSORS]; /* where they are, if their gradients may be there, too */
  bool added;                            /* forward has added to gradients of parameters */
  bool leaves_sum; /* the child that is called now may, where it is a chain */
  struct ek__open_sum open_sum; /* zeros: none is */
  struct ek__postponed postponed;
  ek_tensor *saved;                      /* one that does not exist stands for a recipe: remake.c */
  size_t saved_count, saved_capacity;
  struct ek__recipe *recipes;
  size_t recipe_count, recipe_capacity, recipes_open;
  struct ek__record *records;
  size_t record_count, record_capacity;
  ek_tensor *extents; /* types and shapes of tensors, without their memory */
  size_t extent_count, extent_capacity;
  struct ek__converted {
    size_t parameter;
    ek_tensor value;
  } * converted; /* parameters in the type of the frame that has asked for them */
  size_t converted_count, converted_capacity;
  uint64_t named;    /* number of the thread's error that has the name of a module already */
  bool *touched;     /* per parameter of the replica */
  uint32_t *waiting; /* per parameter: users that have not said that they are done */
  ek_tensor *wide;   /* per parameter: its gradient in f32, if there is one; NULL: modules add to
                      * the replica's own */
};

/* The type of floating tensors in the frame on top. */
static inline ek_type ek__pass_values(const ek_pass *pass) {
  return ek_precision_type(pass->frame->precision);
}

static inline ek_stream *ek__pass_stream(const ek_pass *pass) {
  return ek_device_stream(pass->replica->device, EK_STREAM_COMPUTE);
}

/* ek_pass_open() for a replica that does not hold everything whole; with lender NULL it does. The
 * lender must outlive the pass. */
ek_status ek__pass_open(ek_pass **pass, ek_replica *replica, const ek_pass_options *options,
                        struct ek__lender *lender);

/* "No record": nothing is saved, or the caller did the module's forward. */
#define EK__NO_RECORD SIZE_MAX

/* No recipe. */
#define EK__NO_RECIPE SIZE_MAX

/* Computes the sum that a chain has left open, if one is; and forgets it, with its reference. */
ek_status ek__sum_close(ek_pass *pass);
void ek__sum_drop(ek_pass *pass);

/* Does what a module has postponed, if one has; and forgets it, with its references. */
static inline ek_status ek__postponed_run(ek_pass *pass) {
  return pass->postponed.node == NULL ? EK_OK : pass->postponed.run(pass);
}
void ek__postponed_drop(ek_pass *pass);

/* ---- round_gradients.c: gradients that are kept in 16 bits, or not at all ---- */

/* The place in which the replica, or a lender, keeps a gradient. */
ek_status ek__kept_gradient(ek_tensor *gradient, const ek_pass *pass, size_t parameter);
/* The f32 gradient that modules add to, a loan; undefined where nothing was added in this step. */
ek_status ek__wide_gradient(ek_tensor *gradient, ek_pass *pass, size_t parameter);
/* Nothing adds to it any more: if there is one, it is rounded to where it is kept, and given
 * back. */
ek_status ek__round_gradient(ek_pass *pass, size_t parameter);
/* Gives all of them back. */
void ek__drop_wide_gradients(ek_pass *pass);

/* ---- cast.c ---- */

/* The conversions for a function of `node` that runs in `type`, called from one in `outer`. */
void ek__cast_plan(struct ek__cast *cast, const ek_pass *pass, const struct ek__node *node,
                   const ek_tensor *inputs, size_t count, ek_type type, ek_type outer,
                   bool predict);
/* Tensors on the other side of a conversion: new ones for those of the set, loans of the others. A
 * failure leaves none. */
ek_status ek__cast_tensors(ek_tensor *made, ek_pass *pass, const ek_tensor *given, size_t count,
                           uint32_t set, ek_type type);
void ek__cast_free(ek_tensor *made, size_t count, uint32_t set);
/* Tensors that the caller owns become those of another type, one after the other. */
ek_status ek__cast_move(ek_tensor *owned, ek_pass *pass, size_t count, uint32_t set, ek_type type);
/* The floating ones of `count` tensors that are not of the type. */
uint32_t ek__cast_set(const ek_tensor *tensors, size_t count, ek_type type);
/* A loan of a parameter or buffer of the replica, in the replica's type. */
ek_status ek__pass_value(ek_tensor *value, const ek_pass *pass, size_t global);
/* A parameter as the frame on top computes with it: a loan that the pass keeps until the frame
 * ends. */
ek_status ek__cast_parameter(ek_tensor *parameter, ek_pass *pass, size_t number);
/* Frees all except the first `count`. */
void ek__cast_drop_parameters(ek_pass *pass, size_t count);

/* Whether the memory is that of an input of the root which the runner keeps until backward. */
static inline bool ek__pass_was_lent(const ek_pass *pass, const ek_memory *memory) {
  for (size_t i = 0; i < EK_MAX_TENSORS && memory != NULL; i++) {
    if (pass->lent[i] == memory) return true;
  }
  return false;
}

/* Whether forward has added to gradients of parameters. */
static inline bool ek__pass_has_added(const ek_pass *pass) { return pass != NULL && pass->added; }

/* Reports as complete: every parameter whose users were all done in forward; and every parameter
 * that no module has reported. */
ek_status ek__pass_complete_early(ek_pass *pass);
ek_status ek__pass_complete_rest(ek_pass *pass);

/* Opens a recipe: `how`, and from what. *recipe is its number. */
ek_status ek__recipe_open(size_t *recipe, ek_pass *pass, const struct ek__recipe *how,
                          const ek_tensor *from);
/* Opens one for a result of the frame on top: an activation of what child `maker` gives for
 * `from`. EK__NO_RECIPE where nothing is saved. In run.c. */
ek_status ek__recipe_open_activated(size_t *recipe, ek_pass *pass, size_t maker,
                                    const ek_tensor *from, ek_activation activation,
                                    const ek_tensor *result);
/* The module whose input it is has returned. Does nothing for EK__NO_RECIPE. */
void ek__recipe_close(ek_pass *pass, size_t recipe);
/* The number of an open recipe for this tensor, or EK__NO_RECIPE. */
size_t ek__recipe_for(const ek_pass *pass, const ek_tensor *tensor);
/* Puts a reference to a tensor, or the placeholder of its recipe, on the stack of saved tensors;
 * and takes the last one off. */
ek_status ek__saved_push(ek_pass *pass, const ek_tensor *tensor, size_t recipe);
ek_status ek__saved_take(ek_tensor *tensor, ek_pass *pass);
void ek__saved_drop(ek_pass *pass);
/* Checks that each of `count` tensors from a module or the runner exists, on the device. */
ek_status ek__check_tensors(const char *who, const ek_pass *pass, const ek_tensor *tensors,
                            size_t count);

/* Remembers the inputs of a forward that begins as `of`; *record is its number. */
ek_status ek__record_push(size_t *record, ek_pass *pass, const struct ek__frame *of,
                          const ek_tensor *inputs);
/* The last forward of `node` among the children of the frame on top. */
size_t ek__record_find(const ek_pass *pass, const struct ek__node *node);
/* Forgets the record and those above it; drops the tensors saved since it began. */
void ek__record_drop(ek_pass *pass, size_t record);

/* The number of inputs of a forward; a predict has none of the targets. */
static inline size_t ek__node_given(const struct ek__node *node, bool predict) {
  return node->inputs - (predict ? node->targets : 0);
}

/* A child of the frame on top. */
ek_status ek__child_node(const struct ek__node **node, const char *who, const ek_pass *pass,
                         size_t child);
/* Runs a module whose tensors have been checked, in a frame of its own: in the type that the
 * options ask for, or in the caller's; and the backward of its last forward. */
ek_status ek__run_forward(ek_pass *pass, const struct ek__node *node, const ek_tensor *inputs,
                          ek_tensor *outputs, const ek_child_options *options, bool predict);
ek_status ek__run_backward(ek_pass *pass, const struct ek__node *node,
                           const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

/* Checks a place for the totals of a forward of `node`. */
ek_status ek__check_totals(const ek_pass *pass, const struct ek__node *node,
                           const ek_tensor *totals);
/* Checks the inputs of the forward, or predict, on top: floating ones have its type. */
ek_status ek__check_inputs(const ek_pass *pass, const ek_tensor *inputs, size_t count);
/* The same of the results and leftovers of the forward, or predict; its record gets the outputs. */
ek_status ek__check_forward(ek_pass *pass, const struct ek__node *node, size_t record,
                            const ek_tensor *inputs, ek_tensor *outputs, bool predict);
/* Checks the caller's arguments of a backward, and that the stack is as its forward left it. */
ek_status ek__check_grad_outputs(const ek_pass *pass, size_t record, const ek_tensor *grad_outputs);
/* Checks the results and leftovers of the backward. */
ek_status ek__check_backward(const ek_pass *pass, const struct ek__node *node, size_t record,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

/*
 * Puts path and kind of the module on top before the message of a failure, unless a module within
 * it has done so. `before` is the thread's ek__error_number() when the function was called.
 */
void ek__name_failure(ek_pass *pass, const char *function, ek_status status, uint64_t before);

#endif /* EK_PASS_INTERNAL_H */
