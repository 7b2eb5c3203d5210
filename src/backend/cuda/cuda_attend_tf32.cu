/*
 * cuda_attend_tf32.cu - attention in f32 on tensor cores, if TF32 is allowed: operands have 10 bits
 * after the point. Heads of up to 128: a tile of 64 queries of 256 takes 65 KiB.
 */
#include "backend/cuda/cuda_attend_kernels.cuh"

namespace ek__cuda {

static cudaError_t forward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  if (args->head_width <= 32) return warp_forward<block_of<tf32, 32, 2, 32>>(at, args);
  if (args->head_width <= 64) return warp_forward<block_of<tf32, 64, 2, 32>>(at, args);
  return warp_forward<block_of<tf32, 128, 1, 32>>(at, args);
}

static cudaError_t backward(const struct ek__cuda_place *at,
                            const struct ek__attention_args *args) {
  if (args->head_width <= 32) return warp_backward<block_of<tf32, 32, 1, 32>>(at, args);
  if (args->head_width <= 64) return warp_backward<block_of<tf32, 64, 1, 32>>(at, args);
  return warp_backward<block_of<tf32, 128, 1, 16>>(at, args);
}

const struct tensor_cores attend_tf32 = {forward, backward};

} // namespace ek__cuda
