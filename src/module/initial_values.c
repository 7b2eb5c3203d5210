/*
 * initial_values.c - what a parameter starts with.
 *
 * Random values are computed on the host, in the order of the elements, from (seed, name): they are
 * the same on every backend and for every number of devices.
 */
#include <math.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/random.h>

#include "module/replica_internal.h"

enum { CHUNK = 1024 }; /* elements computed at a time; a multiple of 4 */

/* 32 bits that depend on a name: FNV-1a (Fowler, Noll, Vo). */
static uint32_t hash_name(const char *name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash;
}

/* Two independent normal numbers from two words: Box and Muller 1958. */
static void normal_pair(double result[2], uint32_t a, uint32_t b) {
  const double two_pi = 6.283185307179586;
  const double radius = sqrt(-2.0 * log(((double)a + 1.0) / 4294967296.0));
  const double angle = two_pi * ((double)b / 4294967296.0);
  result[0] = radius * cos(angle);
  result[1] = radius * sin(angle);
}

static void four_values(double values[4], const ek_initializer *initializer, ek_random_key key,
                        int64_t block) {
  uint32_t bits[4];
  ek_random_bits(key, (uint32_t)(block >> 32), (uint32_t)block, bits);
  if (initializer->kind == EK_INITIALIZER_UNIFORM) {
    for (int i = 0; i < 4; i++) {
      values[i] =
          initializer->a + (initializer->b - initializer->a) * (double)ek_random_unit(bits[i]);
    }
    return;
  }
  normal_pair(values, bits[0], bits[1]);
  normal_pair(values + 2, bits[2], bits[3]);
  for (int i = 0; i < 4; i++) values[i] = initializer->a + initializer->b * values[i];
}

/* Elements first .. first + count - 1, in the parameter's type. */
static void compute_chunk(void *chunk, ek_type type, int64_t first, int64_t count,
                          const ek_initializer *initializer, ek_random_key key) {
  for (int64_t i = 0; i < count; i += 4) {
    double random[4];
    const double *values = random;
    if (initializer->kind == EK_INITIALIZER_VALUES) {
      values = initializer->values + first + i;
    } else {
      four_values(random, initializer, key, (first + i) / 4);
    }
    for (int64_t j = 0; j < 4 && i + j < count; j++) {
      if (type == EK_F32) {
        ((float *)chunk)[i + j] = (float)values[j];
      } else {
        ((double *)chunk)[i + j] = values[j];
      }
    }
  }
}

ek_status ek__initial_values(ek_tensor *value, const struct ek__parameter *parameter, int64_t begin,
                             uint64_t seed) {
  const ek_initializer *initializer = &parameter->initializer;
  if (initializer->kind == EK_INITIALIZER_CONSTANT) {
    return ek_op_fill(ek_device_stream(value->device, EK_STREAM_COMPUTE), value, initializer->a);
  }
  double chunk[CHUNK];
  const ek_random_key key = {seed, UINT32_MAX, hash_name(parameter->name)};
  ek_tensor part = *value;
  part.rank = 1;
  const int64_t all = ek_tensor_count(value);
  for (int64_t first = 0; first < all; first += CHUNK) {
    const int64_t left = all - first;
    const int64_t count = left < CHUNK ? left : CHUNK;
    compute_chunk(chunk, value->type, begin + first, count, initializer, key);
    ek_tensor host;
    EK_TRY(ek_tensor_host(&host, chunk, value->type, 1, &count));
    part.shape[0] = count;
    part.data = (char *)value->data + (size_t)first * ek_type_size(value->type);
    EK_TRY(ek_tensor_copy(&part, &host));
  }
  return EK_OK;
}
