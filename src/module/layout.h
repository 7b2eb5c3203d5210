/*
 * layout.h - what a module's declarations add up to.
 *
 * Walking the declarations of a module gives a tree of nodes, one per use of a module, and one list
 * of parameters. A node knows its module, its children, and which parameter each of its own numbers
 * stands for; two numbers that were tied stand for the same parameter. A child that is used twice
 * has two nodes and two sets of parameters.
 *
 * A layout is immutable once built and holds no tensors.
 */
#ifndef EK_LAYOUT_H
#define EK_LAYOUT_H

#include <evenkeel/module.h>

struct ek__parameter {
  char *name; /* full name */
  int rank;
  int64_t shape[EK_MAX_RANK];
  int64_t count, offset; /* elements; offset in the flat parameters or buffers */
  ek_initializer initializer;
  bool buffer;
  uint32_t users; /* nodes that say when the gradient is complete */
  size_t alias;   /* while building: the parameter it was tied to, else itself */
};

struct ek__name { /* a full name and the parameter that it stands for */
  char *name;
  size_t parameter;
};

struct ek__node {
  ek_module *module;
  uint32_t stream; /* for random keys */
  size_t *parameters, parameter_count, parameter_capacity;
  struct ek__node **children;
  size_t child_count, child_capacity;
  char **child_names; /* while building: to refuse a name twice */
  size_t child_name_capacity;
};

struct ek__layout {
  struct ek__node *root;
  struct ek__parameter *parameters;
  size_t parameter_count, parameter_capacity;
  struct ek__name *names;
  size_t name_count;
  int64_t flat_count;   /* elements of the flat parameters, padding included */
  int64_t buffer_count; /* elements of the flat buffers */
  uint32_t node_count;
};

/* Flat offsets are multiples of this many elements. */
enum { EK__FLAT_ALIGNMENT = 16 };

ek_status ek__layout_open(struct ek__layout *layout, ek_module *module);
void ek__layout_close(struct ek__layout *layout);
/* EK_ERR_NOT_FOUND. */
ek_status ek__layout_find(size_t *parameter, const struct ek__layout *layout, const char *name);

#endif /* EK_LAYOUT_H */
