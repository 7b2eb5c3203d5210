/*
 * cuda_convolve.cu - unfolding of pictures, and permutation of dimensions.
 *
 * unfold: a pack of channels of one element of the kernel for each thread, so that reads and writes
 * are of whole packs. Floor: each element written once; pixels are read from L2 again for each
 * element of the kernel. permute is for weights, which are small: one element a thread.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

struct side { /* height or width */
  int64_t size, step, spread, dilation, offset;
  /* The place in x, or -1. */
  __device__ __forceinline__ int64_t place(int64_t from, int64_t tap) const {
    const int64_t at = from * step + tap * dilation - offset;
    if (at < 0 || at % spread != 0 || at / spread >= size) return -1;
    return at / spread;
  }
};

template <class T> struct picture {
  T *y;
  const T *x;
  int64_t first, rows, channels, width; /* width: channels of a group */
  int64_t out_height, out_width, kernel_width, taps;
  side high, wide;
};

/* A row of y has `channels` * taps elements: group, element of the kernel, channel. */
template <class T, int N> __global__ void __launch_bounds__(BLOCK) unfold_kernel(picture<T> a) {
  const int64_t columns = a.channels * a.taps;
  for (walk at(columns / N); at.row < a.rows; at.next()) {
    const int64_t column = at.column * N, pixel = a.first + at.row;
    const int64_t tap = column / a.width % a.taps, group = column / (a.width * a.taps);
    const int64_t row = pixel / a.out_width;
    const int64_t v = a.high.place(row % a.out_height, tap / a.kernel_width);
    const int64_t h = a.wide.place(pixel % a.out_width, tap % a.kernel_width);
    pack<T, N> value = {};
    if (v >= 0 && h >= 0) {
      const int64_t from = (row / a.out_height * a.high.size + v) * a.wide.size + h;
      value = load<N>(a.x + from * a.channels + group * a.width + column % a.width);
    }
    store<N>(a.y + at.row * columns + column, value);
  }
}

side side_of(const struct ek__unfold_args *args, int i) {
  return {i == 0 ? args->height : args->width, args->step[i], args->spread[i], args->dilation[i],
          args->offset[i]};
}

template <class T, class S>
cudaError_t unfold(const struct ek__cuda_place *at, const struct ek__unfold_args *args) {
  const int64_t taps = args->kernel[0] * args->kernel[1];
  if (args->rows <= 0 || args->channels <= 0) return cudaSuccess;
  const picture<T> a = {as<T>(args->y),   as<T>(args->x),
                        args->first,      args->rows,
                        args->channels,   args->channels / args->groups,
                        args->out_height, args->out_width,
                        args->kernel[1],  taps,
                        side_of(args, 0), side_of(args, 1)};
  const bool wide = a.width % PACK<T> == 0 && aligned(a.y, a.x);
  return launch_flat(wide, PACK<T>, unfold_kernel<T, PACK<T>>, unfold_kernel<T, 1>,
                     args->rows * args->channels * taps, at->stream, a);
}

template <class T> struct permutation {
  T *y;
  const T *x;
  int64_t size[4], step[4];
};

template <class T, class S>
__global__ void __launch_bounds__(BLOCK) permute_kernel(permutation<T> a, S scale) {
  const int64_t count = a.size[0] * a.size[1] * a.size[2] * a.size[3];
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t rest = i, from = 0;
    for (int d = 3; d >= 0; d--) {
      from += rest % a.size[d] * a.step[d];
      rest /= a.size[d];
    }
    const S value = S(a.x[from]);
    a.y[i] = T(scale == S(0) ? value : scale * S(a.y[i]) + value);
  }
}

template <class T, class S>
cudaError_t permute(const struct ek__cuda_place *at, const struct ek__permute_args *args) {
  permutation<T> a = {as<T>(args->y), as<T>(args->x), {}, {}};
  int64_t count = 1;
  for (int d = 0; d < 4; d++) {
    a.size[d] = args->size[d];
    a.step[d] = args->step[d];
    count *= args->size[d];
  }
  if (count <= 0) return cudaSuccess;
  return launch(permute_kernel<T, S>, blocks_for(count), BLOCK, at->stream, a, (S)args->value);
}

} // namespace

EK_CUDA_LAUNCHER(unfold, unfold)
EK_CUDA_LAUNCHER(permute, permute)
