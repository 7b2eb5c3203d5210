/*
 * cpu_sgemm_own.c - one thread's matrix product in f32 by isa/isa_products.c, for a build without
 * oneDNN, in which there are no primitives either.
 */
#include "backend/cpu/cpu_convolve.h"
#include "backend/cpu/cpu_primitive.h"

const char *ek__cpu_products_name(void) { return "own matrix products"; }

ek_status ek__cpu_products_prepare(void) { return EK_OK; }

ek_status ek__cpu_sgemm(const struct ek__gemm *g) {
  ek__cpu_functions(ek__types_in(EK_F32))->product(g, 0, g->m);
  return EK_OK;
}

bool ek__cpu_primitive_for_bf16(void) { return false; }

ek_status ek__cpu_primitive_multiply(bool *done, const struct ek__gemm *gemm, ek_type type) {
  (void)done, (void)gemm, (void)type;
  return EK_OK;
}

void ek__cpu_primitive_forget(void) {}

ek_status ek__cpu_convolve_primitive(bool *done, ek_stream *stream,
                                     const struct ek__convolve_args *args) {
  (void)done, (void)stream, (void)args;
  return EK_OK;
}
