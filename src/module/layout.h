/*
 * layout.h - what a module's declarations add up to.
 *
 * Walking the declarations of a module gives a tree of nodes, one per use of a module, and one list
 * of parameters. A node knows its module, its children, and which parameter each of its own numbers
 * stands for; two numbers that were tied stand for the same parameter. A child that is used twice
 * has two nodes and two sets of parameters. A wrapped child has its parent's path and random
 * stream, so that all names and numbers are as if the wrapper were not there.
 *
 * A layout may be *in units* (ek_declare_unit): then each unit is one range of the flat parameters.
 * Parameters that no module has marked are cut into units too, by nodes in declaration order, each
 * of at least a given number of bytes. A tied parameter is in the unit of its source. Frozen
 * parameters of a unit are a unit by themselves.
 *
 * A layout belongs to one replica and is immutable once built, except for the state that modules
 * keep (ek__layout_open_states). It holds no tensors.
 */
#ifndef EK_LAYOUT_H
#define EK_LAYOUT_H

#include <evenkeel/module.h>

#include "device/holder.h"
#include "module/names.h"

/*
 * Flat parameters are grouped by their options for the optimizer, so that each group is one range,
 * which an update handles in one call. Frozen parameters come last, even if the others are in
 * units: the trained ones are then one range that begins with element 0, and their gradients are at
 * the same offsets (frozen ones have no gradients). The small group of biases and norms comes
 * before the large group of matrices. Gradients of matrices become complete from the end to the
 * beginning during backward (reduce.c); those of biases and norms with the first layer's. Rates and
 * decays that patterns set (patterns.c) make groups of their own after these two.
 */
struct ek__group {
  bool no_decay;
  double rate_scale;
  double weight_decay; /* 0: the rule's own, or none */
};
enum { EK__GROUP_NO_DECAY, EK__GROUP_DECAY };

struct ek__parameter {
  const char *name; /* full name; belongs to the layout's names */
  int rank;
  int64_t shape[EK_MAX_RANK];
  int64_t count, offset; /* elements; offset in the flat parameters or buffers */
  int64_t room; /* elements from `offset` on with the rows of zeros after a table */
  ek_initializer initializer;
  bool buffer, no_decay, frozen, elementwise;
  bool held;    /* while building: frozen by this name (ek_declare_frozen) */
  size_t group; /* of layout->groups; of a frozen one their number */
  uint32_t users; /* nodes that say when the gradient is complete */
  size_t alias;   /* while building: the parameter it was tied to, else itself */
  size_t unit;    /* while building: the one that was marked, or EK__NO_UNIT */
  size_t owner;   /* number of the node that declared it */
};

/* No unit: of a node that is not marked, and of all in a layout that is not in units. */
#define EK__NO_UNIT SIZE_MAX

struct ek__node {
  ek_module *module;
  const char *path;      /* NULL for the root and what it wraps; the layout's names own it */
  struct ek__holder holder; /* of what its module takes: the same path */
  struct ek__node *next; /* all nodes of a layout, the last walked first */
  /* Counts of the module when it was walked: they size arrays. */
  size_t inputs, outputs, targets, terms, predictions;
  uint32_t stream; /* for random keys */
  size_t number;   /* all nodes in the order of the walk */
  size_t unit;     /* that its module has marked: what is trained of it, or frozen if nothing is */
  size_t stop;     /* of its first unit, among the layout's stops */
  bool opened;     /* by its module, whose state is the next */
  void *state;
  size_t *parameters, parameter_count, parameter_capacity;
  struct ek__node **children;
  size_t child_count, child_capacity;
};

struct ek__layout {
  struct ek__node *root, *nodes;
  struct ek__parameter *parameters;
  size_t parameter_count, parameter_capacity;
  struct ek__names names;     /* of parameters, their number; of modules, EK__NO_PARAMETER */
  int64_t flat_count;         /* elements of the flat parameters, padding included */
  int64_t trained_count;      /* of these before the first frozen one */
  size_t *order, order_count; /* parameters, without buffers, as they are */
  size_t order_trained;       /* of these before the first frozen one */
  struct ek__group *groups;
  size_t group_count;
  size_t unit_count; /* 0: it is not in units */
  size_t unit_trained; /* of these before the first of frozen parameters */
  /* Units in the order in which a walk through the nodes needs their parameters; no two neighbours
   * are the same. */
  size_t *stops, stop_count, stop_capacity;
  int64_t buffer_count;       /* elements of the flat buffers */
  ek_type type;               /* of parameters */
  size_t table_rows;          /* of the backend; 0: any number */
  uint32_t node_count;
  size_t walked, marked; /* nodes, and units that modules have marked */
  bool collective;        /* a module of it does */
  const ek_module *mixer; /* the first one that declares `mixes_samples`, or NULL */
  bool stateful;   /* a module of it keeps state: replicas are freed where they were opened */
};

#define EK__NO_PARAMETER SIZE_MAX

/* Flat offsets are multiples of the first number of elements, and those of units of the second,
 * whose bytes are a multiple of EK_MEMORY_UNIT in any type: a unit in memory of its own has the
 * same alignment as among the others, so a library that chooses by an address chooses the same. */
enum { EK__FLAT_ALIGNMENT = 16, EK__UNIT_ALIGNMENT = 128 };

/*
 * A table with fewer rows has none after it. Rows of zeros after a table are of no parameter and of
 * no file, but in the flat buffers they are as other elements between parameters: their gradients
 * are zeros, so updates leave them zeros. They must be zeros, because products read them: whatever
 * begins a gradient, or writes a parameter or a state whole, clears them too, in case that a step
 * that was not finite has left something there.
 */
enum { EK__TABLE_LEAST_ROWS = 8192 };

/* The longest path of a node or parameter, with a final NUL: it bounds how deep modules nest. */
enum { EK__PATH_SIZE = 512 };

/* EK_ERR_INVALID_ARGUMENT if a program's module has changed since ek_module_init(), or a count
 * exceeds the size of an array. */
ek_status ek__module_check(const ek_module *module);

/* Whether its table declares so. */
bool ek__is_collective(const ek_module *module);
bool ek__mixes_samples(const ek_module *module);

/* `type` is that of parameters, `precision` that of the modules: EK_ERR_UNSUPPORTED if one of them
 * does not compute in it. unit_bytes > 0: in units. table_rows: that of the backend. */
ek_status ek__layout_open(struct ek__layout *layout, ek_module *module, ek_type type,
                          ek_type precision, size_t unit_bytes, size_t table_rows,
                          const ek_parameter_pattern *patterns, size_t pattern_count);
/* States of modules must be closed. */
void ek__layout_close(struct ek__layout *layout);
/* Calls the modules' `open`, parents first, and `close`, in the reverse order; the first failure
 * closes what was opened. */
ek_status ek__layout_open_states(struct ek__layout *layout, ek_device *device);
void ek__layout_close_states(struct ek__layout *layout, ek_device *device);
/* EK_ERR_STATE if a count of a module has changed since it was walked. */
ek_status ek__layout_check(const struct ek__layout *layout);
/* The name of a module in messages: "blocks.3.mlp (sequential)", or its kind for the root. */
const char *ek__node_path(char path[EK__PATH_SIZE], const struct ek__node *node);
/* Puts every parameter into a group, by its declaration and by the patterns. In patterns.c. */
ek_status ek__layout_group(struct ek__layout *layout, const ek_parameter_pattern *patterns,
                           size_t count);
/* The name within `within` ("" or "blocks.0.") that is most like `wanted`, of a parameter or of a
 * module; NULL if there is no name. In patterns.c. */
const char *ek__layout_nearest(const struct ek__layout *layout, const char *wanted,
                               const char *within);
/* EK_ERR_NOT_FOUND. */
ek_status ek__layout_find(size_t *parameter, const struct ek__layout *layout, const char *name);

/* ---- the steps of opening ---- */

/* declare.c: makes the nodes and parameters that modules declare; `type` is that of the modules.
 * Then drops the parameters that are tied to others: their names stand for those. */
ek_status ek__layout_walk(struct ek__layout *layout, ek_module *module, ek_type type);
ek_status ek__layout_drop_tied(struct ek__layout *layout);
/* layout_units.c: the unit of each parameter and node; 0 bytes: none. Then the order in which a
 * walk from `node` on comes to units. */
ek_status ek__layout_units(struct ek__layout *layout, size_t unit_bytes);
ek_status ek__layout_stops(struct ek__layout *layout, struct ek__node *node);
/* layout_place.c: the order of parameters, and where each is in the flat buffers. */
ek_status ek__layout_place(struct ek__layout *layout);

#endif /* EK_LAYOUT_H */
