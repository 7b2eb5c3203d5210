/*
 * initial_values.c - what a parameter starts with.
 *
 * Random values are computed on the host, from (seed, name) and the number of the element: they are
 * the same on every backend and for every number of devices and threads.
 */
#include <math.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/random.h>

#include "device/device_internal.h"
#include "module/replica_internal.h"

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

struct values {
  const ek_initializer *initializer;
  ek_random_key key;
  ek_type type;
  int64_t begin; /* the number of the first element, a multiple of 4 */
};

/* Bytes first .. first + bytes - 1; `first` is of an element whose number is a multiple of 4. */
static ek_status compute(const void *context, void *to, size_t first, size_t bytes) {
  const struct values *it = context;
  const size_t size = ek_type_size(it->type);
  const int64_t begin = it->begin + (int64_t)(first / size), count = (int64_t)(bytes / size);
  for (int64_t i = 0; i < count; i += 4) {
    double random[4];
    const double *values = random;
    if (it->initializer->kind == EK_INITIALIZER_VALUES) {
      values = it->initializer->values + begin + i;
    } else {
      four_values(random, it->initializer, it->key, (begin + i) / 4);
    }
    for (int64_t j = 0; j < 4 && i + j < count; j++) {
      if (it->type == EK_F32) {
        ((float *)to)[i + j] = (float)values[j];
      } else {
        ((double *)to)[i + j] = values[j];
      }
    }
  }
  return EK_OK;
}

ek_status ek__initial_values(ek_tensor *value, const struct ek__parameter *parameter, int64_t begin,
                             uint64_t seed, size_t sharers) {
  const ek_initializer *initializer = &parameter->initializer;
  if (initializer->kind == EK_INITIALIZER_CONSTANT) {
    return ek_op_fill(ek_device_stream(value->device, EK_STREAM_COMPUTE), value, initializer->a);
  }
  const struct values values = {initializer,
                                {seed, UINT32_MAX, hash_name(parameter->name)},
                                value->type,
                                begin};
  const struct ek__host_bytes host = {NULL, compute, &values};
  return ek__tensor_fill_from(value, &host, sharers);
}
