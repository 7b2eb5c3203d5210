/*
 * model_config.h - config.json beside a file of weights: what it says of the model.
 *
 * A member of an object in it is called "rope_scaling.factor"; objects and lists further inside are
 * passed over.
 */
#ifndef EK_MODEL_CONFIG_H
#define EK_MODEL_CONFIG_H

#include "module/layout.h"

enum { EK__CONFIG_SHOWN = 80, EK__CONFIG_VALUE = 128 };

struct ek__config_member {
  const char *outer, *key; /* outer: of an object that it is in; NULL: it is not */
  enum {
    EK__CONFIG_NULL,
    EK__CONFIG_OTHER, /* an object or a list */
    EK__CONFIG_NUMBER,
    EK__CONFIG_BOOLEAN,
    EK__CONFIG_WORD
  } kind;
  double number;
  const char *word;
  char shown[EK__CONFIG_SHOWN]; /* for a message, with the quotes of a string */
};

struct ek__config {
  char *path, *text; /* text NULL: there is no such file */
  struct ek__config_member *members;
  size_t count, capacity;
};

/*
 * Reads config.json in the folder of `path`, if there is one: close it in any case.
 * EK_ERR_CORRUPT if it is not a JSON object, EK_ERR_IO if the file cannot be read.
 */
ek_status ek__config_open(struct ek__config *config, const char *path);
void ek__config_close(struct ek__config *config);

/* The last member with this name, "key" or "outer.key", that is not null; NULL: there is none. */
const struct ek__config_member *ek__config_find(const struct ek__config *config, const char *name);

/*
 * Compares the file with facts (ek_module_ops.facts), or with those of all modules of a layout.
 * Keys that no module declares, and null, are ignored. EK_ERR_INVALID_ARGUMENT for another value.
 */
ek_status ek__config_agrees(const struct ek__config *config, const ek_fact *facts, size_t count);
ek_status ek__config_check(const struct ek__config *config, const struct ek__layout *layout);

/* The facts of a module, and their number; NULL and 0. */
const ek_fact *ek__config_facts(const ek_module *module, size_t *count);

/* One fact after another of all modules of a layout. Zeros at first; false after the last one. */
struct ek__fact_at {
  const struct ek__node *node;
  size_t index; /* among the facts of its module */
  const ek_fact *fact;
};
bool ek__config_next_fact(struct ek__fact_at *at, const struct ek__layout *layout);

/* The value of a fact, of words the first one; of a number all digits, with a point. */
void ek__config_value(char text[EK__CONFIG_VALUE], const ek_fact *fact);

/*
 * One fact after another that a saved state has, as a pair of its header: the key is this prefix,
 * the path of a child, and the fact's key. Those that are only written or are limits are left out,
 * and a key that its module had before. Zeros at first; false after the last one.
 */
#define EK__STATE_FACT_KEY "evenkeel.model/"
struct ek__state_fact {
  struct ek__fact_at at;
  char key[sizeof EK__STATE_FACT_KEY + EK__PATH_SIZE + 128], value[EK__CONFIG_VALUE];
};
bool ek__config_next_state_fact(struct ek__state_fact *fact, const struct ek__layout *layout);

#endif /* EK_MODEL_CONFIG_H */
