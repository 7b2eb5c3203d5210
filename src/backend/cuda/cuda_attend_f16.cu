/*
 * cuda_attend_f16.cu - attention in f16, on tensor cores: cuda_attend_kernels.cuh. A file of its
 * own, because nvcc takes long for each type.
 */
#include "backend/cuda/cuda_attend_kernels.cuh"

namespace ek__cuda {

const struct tensor_cores attend_f16 = {half_forward<__half>, half_backward<__half>};

} // namespace ek__cuda
