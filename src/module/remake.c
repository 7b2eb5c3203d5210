/*
 * remake.c - tensors that are made again instead of being saved.
 *
 * A recipe says which module made a tensor, and from what. It is open while the module that has the
 * tensor as its input runs forward. If that module, or a child, saves its input, an empty struct
 * with the recipe's number as its shape goes on the stack of saved tensors instead. Inputs are
 * loans, which must not be written, and the caller holds them, so the address identifies the tensor
 * of an open recipe.
 *
 * The first entry that is taken back runs the maker, and an activation after it where the tensor is
 * that; the last one frees the result. What the maker saved in its first forward it may use
 * (ek_pass_kept()): its record is still there, because its backward comes later. Recipes are
 * a stack, like the entries that refer to them: those that are not needed leave it from the top.
 */
#include <evenkeel/pass.h>

#include "core/alloc.h"
#include "core/error.h"
#include "module/pass_internal.h"

/* Removes the recipes on top that are not needed any more. */
static void settle(ek_pass *pass) {
  while (pass->recipe_count > 0) {
    struct ek__recipe *last = &pass->recipes[pass->recipe_count - 1];
    if (last->open || last->pending > 0) return;
    ek_tensor_free(&last->made);
    ek_tensor_free(&last->from);
    pass->recipe_count--;
  }
}

ek_status ek__recipe_open(size_t *recipe, ek_pass *pass, const struct ek__recipe *how,
                          const ek_tensor *from) {
  EK_TRY(ek__grow(&pass->recipes, &pass->recipe_capacity, pass->recipe_count + 1,
                  sizeof *pass->recipes, "what is made again"));
  struct ek__recipe opened = *how;
  opened.open = true;
  EK_TRY(ek_tensor_share(&opened.from, from));
  *recipe = pass->recipe_count++;
  pass->recipes[*recipe] = opened;
  pass->recipes_open++;
  return EK_OK;
}

void ek__recipe_close(ek_pass *pass, size_t recipe) {
  if (recipe == EK__NO_RECIPE) return;
  pass->recipes[recipe].open = false;
  pass->recipes_open--;
  settle(pass);
}

static bool is(const ek_tensor *a, const ek_tensor *b) {
  return a->memory == b->memory && a->data == b->data && ek_tensor_same_shape(a, b);
}

size_t ek__recipe_for(const ek_pass *pass, const ek_tensor *tensor) {
  size_t open = pass->recipes_open;
  for (size_t i = pass->recipe_count; i-- > 0 && open > 0;) {
    if (!pass->recipes[i].open) continue;
    if (is(&pass->recipes[i].like, tensor)) return i;
    open--;
  }
  return EK__NO_RECIPE;
}

ek_status ek__saved_push(ek_pass *pass, const ek_tensor *tensor, size_t recipe) {
  EK_TRY(ek__grow(&pass->saved, &pass->saved_capacity, pass->saved_count + 1, sizeof *pass->saved,
                  "the saved tensors"));
  ek_tensor *last = &pass->saved[pass->saved_count];
  if (recipe == EK__NO_RECIPE) {
    EK_TRY(ek_tensor_share(last, tensor));
  } else {
    *last = (ek_tensor){.rank = 1, .shape = {(int64_t)recipe}};
    pass->recipes[recipe].pending++;
  }
  pass->saved_count++;
  return EK_OK;
}

/* Another one of the recipe's tensors has left the stack. */
static void release(ek_pass *pass, size_t recipe) {
  struct ek__recipe *it = &pass->recipes[recipe];
  if (--it->pending == 0) {
    ek_tensor_free(&it->made);
    ek_tensor_free(&it->from);
  }
  settle(pass);
}

void ek__saved_drop(ek_pass *pass) {
  ek_tensor *last = &pass->saved[--pass->saved_count];
  if (ek_tensor_exists(last)) {
    ek_tensor_free(last);
  } else {
    release(pass, (size_t)last->shape[0]);
  }
}

/* While the maker runs the table of recipes may move. */
static ek_status make(ek_pass *pass, size_t recipe) {
  if (ek_tensor_exists(&pass->recipes[recipe].made)) return EK_OK;
  const struct ek__recipe it = pass->recipes[recipe];
  ek_tensor made = {0};
  EK_TRY(it.run(pass, &it, &made));
  pass->recipes[recipe].made = made;
  if (made.type == it.like.type && ek_tensor_same_shape(&made, &it.like)) return EK_OK;
  char path[EK__PATH_SIZE];
  return ek_error_set(EK_ERR_SHAPE, "%s gave another type or shape when it ran again",
                      ek__node_path(path, it.maker));
}

ek_status ek__saved_take(ek_tensor *tensor, ek_pass *pass) {
  const ek_tensor last = pass->saved[pass->saved_count - 1];
  if (ek_tensor_exists(&last)) {
    *tensor = last;
    pass->saved_count--;
    return EK_OK;
  }
  const size_t recipe = (size_t)last.shape[0];
  EK_TRY(make(pass, recipe)); /* on failure it is still there, and is dropped like all others */
  EK_TRY(ek_tensor_share(tensor, &pass->recipes[recipe].made));
  pass->saved_count--;
  release(pass, recipe);
  return EK_OK;
}

bool ek_pass_kept(ek_tensor *loan, const ek_pass *pass, size_t index) {
  if (loan == NULL || pass == NULL || pass->frame->kept == 0) return false;
  const size_t record = pass->frame->kept - 1;
  if (record >= pass->record_count) return false;
  const struct ek__record *of = &pass->records[record];
  const bool there = of->node == pass->frame->node && of->saved && of->above <= pass->saved_count &&
                     index < of->above - of->below;
  if (!there || !ek_tensor_exists(&pass->saved[of->below + index])) return false;
  *loan = pass->saved[of->below + index];
  return true;
}
