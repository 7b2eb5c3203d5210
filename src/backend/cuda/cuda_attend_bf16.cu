/*
 * cuda_attend_bf16.cu - attention in bf16, on tensor cores: cuda_attend_kernels.cuh. A file of its
 * own, because nvcc takes long for each type.
 */
#include "backend/cuda/cuda_attend_kernels.cuh"

namespace ek__cuda {

const struct tensor_cores attend_bf16 = {half_forward<__nv_bfloat16>, half_backward<__nv_bfloat16>};

} // namespace ek__cuda
