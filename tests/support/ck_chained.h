/*
 * ck_chained.h - containers of a program's own that run a chain (chain.h), and decoders of them:
 * the shapes and the names of gpt.h and llama.h, from the public headers alone.
 */
#ifndef CK_CHAINED_H
#define CK_CHAINED_H

#include "ek_check.h"

enum { CK_CHAINED_CHILDREN = 8, CK_CHAINED_STEPS = 12 };

/* Whether modules that are made now leave the slot `chain` of their tables out. */
extern bool ck_chained_apart;

/* A module of these children (the references are taken over, also on failure) and these steps; NULL
 * ends the children and `names`, CK_CHAINED_END the steps. `names` NULL: numbers; `steps` NULL: one
 * for each child. */
#define CK_CHAINED_END (SIZE_MAX - 1)
ek_status ck_chained_create(ek_module **module, ek_module **children, const char *const *names,
                            const size_t *steps, ek_recompute recompute);

/* ek_gpt_create() and ek_llama_create() once more, for options without a fused loss. */
ek_status ck_chained_gpt_create(ek_module **module, const ek_gpt_options *options);
ek_status ck_chained_llama_create(ek_module **module, const ek_llama_options *options);

#endif /* CK_CHAINED_H */
