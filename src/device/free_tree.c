/*
 * free_tree.c - a treap with the largest block of each subtree. Functions that call themselves go
 * as deep as the tree.
 */
#include "device/free_tree.h"

/* The finaliser of SplitMix64: neighbours get unrelated priorities. */
static uint64_t priority(const struct ek_memory *block) {
  uint64_t z = block->offset / EK_MEMORY_UNIT + UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

uint64_t ek__free_tree_largest(const struct ek_memory *root) {
  return root == NULL ? 0 : root->largest;
}

static void measure(struct ek_memory *node) {
  const uint64_t left = ek__free_tree_largest(node->left);
  const uint64_t right = ek__free_tree_largest(node->right);
  const uint64_t below = left > right ? left : right;
  node->largest = node->bytes > below ? node->bytes : below;
}

/* All of `less` is before all of `more`. */
static struct ek_memory *join(struct ek_memory *less, struct ek_memory *more) {
  if (less == NULL) return more;
  if (more == NULL) return less;
  if (priority(less) > priority(more)) {
    less->right = join(less->right, more);
    measure(less);
    return less;
  }
  more->left = join(less, more->left);
  measure(more);
  return more;
}

/* What is before `offset`, and what from there on. */
static void cut(struct ek_memory *node, uint64_t offset, struct ek_memory **less,
                struct ek_memory **more) {
  if (node == NULL) {
    *less = *more = NULL;
    return;
  }
  if (node->offset < offset) {
    cut(node->right, offset, &node->right, more);
    *less = node;
  } else {
    cut(node->left, offset, less, &node->left);
    *more = node;
  }
  measure(node);
}

static struct ek_memory *with(struct ek_memory *node, struct ek_memory *block) {
  if (node == NULL || priority(block) > priority(node)) {
    cut(node, block->offset, &block->left, &block->right);
    measure(block);
    return block;
  }
  if (block->offset < node->offset) {
    node->left = with(node->left, block);
  } else {
    node->right = with(node->right, block);
  }
  measure(node);
  return node;
}

static struct ek_memory *without(struct ek_memory *node, const struct ek_memory *block) {
  if (node == block) return join(node->left, node->right);
  if (block->offset < node->offset) {
    node->left = without(node->left, block);
  } else {
    node->right = without(node->right, block);
  }
  measure(node);
  return node;
}

void ek__free_tree_insert(struct ek_memory **root, struct ek_memory *block) {
  *root = with(*root, block);
}

void ek__free_tree_remove(struct ek_memory **root, const struct ek_memory *block) {
  *root = without(*root, block);
}

struct ek_memory *ek__free_tree_first(struct ek_memory *root, uint64_t bytes) {
  if (ek__free_tree_largest(root) < bytes) return NULL;
  for (;;) {
    if (ek__free_tree_largest(root->left) >= bytes) {
      root = root->left;
    } else if (root->bytes >= bytes) {
      return root;
    } else {
      root = root->right;
    }
  }
}
