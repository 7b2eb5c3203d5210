/*
 * weights_internal.h - the weights of a model and the tensors of files that they are made of:
 * weights.c makes the list and writes files, weights_load.c reads them.
 */
#ifndef EK_WEIGHTS_INTERNAL_H
#define EK_WEIGHTS_INTERNAL_H

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>
#include <evenkeel/weights.h>

#include "module/layout.h"

/* Bytes of host memory that numbers go through. */
enum { EK__WEIGHT_PIECE = 16 << 20 };

/* One tensor of a file. */
struct ek__weight_source {
  char name[2 * EK_STATE_NAME_SIZE]; /* in the file, with the prefix */
  bool bare;                         /* a file that is written has it without the prefix */
  int64_t elements;
  int64_t share;              /* of the rows, as the fact of the table's row says */
  const ek_safetensors *file; /* of a load; NULL: a save */
  const char *found;          /* its name there */
};

struct ek__weight {
  ek_state_info info;
  bool transposed;
  bool averaged; /* a save takes the average that the optimizer keeps */
  struct ek__weight_source *sources;
  size_t count;
};

struct ek__weights {
  struct ek__weight *list; /* by the number of the parameter or buffer in the layout */
  struct ek__weight_source *sources; /* of all of them */
  size_t count;
  size_t prefix; /* the length of the prefix of names in the file */
  char *piece;   /* of EK__WEIGHT_PIECE bytes, or of a row of a transposed matrix */
  char *whole;   /* of the largest transposed matrix; NULL if no matrix is transposed */
  char average[EK_STATE_NAME_SIZE]; /* of the averages, before the parameter: "adamw/average/" */
};

/* The names of the first module that has a table (ek_module_ops.weight_names), and its prefix where
 * the options have none; nothing if there is no such module. */
void ek__weights_own_names(ek_weights_options *options, const ek_data_parallel_model *model);

/* The list, with a name and a size for each source, and the memory for pieces. After a failure
 * nothing is left open. */
ek_status ek__weights_open(struct ek__weights *w, const ek_data_parallel_model *model,
                           const ek_weights_options *o);
void ek__weights_close(struct ek__weights *w);

/* The name of a source as it is written, or the other form, which a load takes too. */
const char *ek__weight_form(const struct ek__weights *w, const struct ek__weight_source *source,
                            bool written);
/* The sources of a parameter or buffer of this name: rows of the table, or one of the same name. */
size_t ek__weight_count_sources(const char *name, const ek_weights_options *o);
/* Names them; weight->sources has room for them. */
ek_status ek__weight_name_sources(struct ek__weight *weight, const struct ek__layout *layout,
                                  const ek_weights_options *o);
/* The model's name of a tensor of a file, which is without the prefix: by a row of the
 * table, or the same. */
void ek__weight_model_name(char *name, size_t size, const char *tensor,
                           const ek_weights_options *o);
/* Type and shape of a source in the file. */
ek_tensor ek__weight_in_file(const struct ek__weight *weight,
                             const struct ek__weight_source *source);

/* `count` elements at `data`, in the model's type. */
ek_tensor ek__weight_flat(const struct ek__weight *weight, char *data, int64_t count);
/* Moves elements first, first + 1, ... of a weight between the piece and the model. */
typedef ek_status (*ek__weight_move)(void *context, const struct ek__weight *weight,
                                     const struct ek__weight_source *source, ek_tensor *piece,
                                     int64_t first);

/* Calls `move` for all pieces of a weight: an empty one has one piece. */
ek_status ek__weight_pieces(const struct ek__weights *w, const struct ek__weight *weight,
                            ek__weight_move move, void *context);
/* Calls `move` for the pieces of the matrix that w->whole, of `rows` rows, is turned to. */
ek_status ek__weight_turned_pieces(const struct ek__weights *w, const struct ek__weight *weight,
                                   int64_t rows, int64_t columns, ek__weight_move move,
                                   void *context);

#endif /* EK_WEIGHTS_INTERNAL_H */
