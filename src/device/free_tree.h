/*
 * free_tree.h - the free blocks of an arena, so that the first fit is found without a walk.
 *
 * A treap: a binary search tree by address that is a heap by a pseudo-random priority, here a hash
 * of the address, so its depth is about twice the logarithm of the number of free blocks for any
 * order of requests. Each node has the size of the largest block below it: the first block that is
 * large enough is to the left if a block there is large enough, else here, else to the right. The
 * links are members of the blocks' records, so nothing is allocated.
 *
 * The shape of the tree follows from the set of free blocks alone, and its answer is the block that
 * a walk from the front would find.
 */
#ifndef EK_FREE_TREE_H
#define EK_FREE_TREE_H

#include "device/arena.h"

/* The block may not be in a tree; its offset and bytes stay as they are while it is in one. */
void ek__free_tree_insert(struct ek_memory **root, struct ek_memory *block);
void ek__free_tree_remove(struct ek_memory **root, const struct ek_memory *block);
/* The block at the lowest address with at least `bytes`, or NULL. */
struct ek_memory *ek__free_tree_first(struct ek_memory *root, uint64_t bytes);
/* Bytes of the largest block; 0: the tree is empty. */
uint64_t ek__free_tree_largest(const struct ek_memory *root);

#endif /* EK_FREE_TREE_H */
