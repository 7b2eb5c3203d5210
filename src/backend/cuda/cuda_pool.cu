/*
 * cuda_pool.cu - windows over pictures.
 *
 * A thread has a pack of channels of one pixel of the result, and goes over the pixels that it is
 * made of in their order: no atomic sum, and reads of neighbouring threads are neighbours. Floor:
 * each element of the source once; pixels of windows that overlap come from L2 again.
 */
#include "backend/cuda/cuda_portable.cuh"

#include "backend/windows.h"

using namespace ek__cuda;

namespace {

template <class T> struct pictures {
  T *y;
  const T *x;
  int32_t *places;
  int64_t rows, channels;
  int64_t code; /* the kind; a struct of a kernel's arguments has no gaps */
  ek__window_side high, wide;
  __device__ __forceinline__ ek__window kind() const { return static_cast<ek__window>(code); }
};

struct pixel {
  int64_t image, v, h;
  __device__ __forceinline__ pixel(int64_t row, int64_t height, int64_t width)
      : image(row / (height * width)), v(row / width % height), h(row % width) {}
};

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) largest_kernel(pictures<T> a) {
  for (walk at(a.channels / N); at.row < a.rows; at.next()) {
    const pixel p(at.row, a.high.windows, a.wide.windows);
    pack<S, N> best;
    pack<int32_t, N> place;
    for (int j = 0; j < N; j++) {
      best.at[j] = S(-INFINITY);
      place.at[j] = -1;
    }
    for (int64_t ky = 0; ky < a.high.kernel; ky++) {
      const int64_t v = p.v * a.high.stride - a.high.padding + ky * a.high.dilation;
      if (v < 0 || v >= a.high.pixels) continue;
      for (int64_t kx = 0; kx < a.wide.kernel; kx++) {
        const int64_t h = p.h * a.wide.stride - a.wide.padding + kx * a.wide.dilation;
        if (h < 0 || h >= a.wide.pixels) continue;
        const int64_t from = (p.image * a.high.pixels + v) * a.wide.pixels + h;
        const pack<S, N> x = widened<S>(load<N>(a.x + from * a.channels + at.column * N));
        for (int j = 0; j < N; j++) {
          if (!(x.at[j] > best.at[j]) && x.at[j] == x.at[j]) continue;
          best.at[j] = x.at[j];
          place.at[j] = (int32_t)(ky * a.wide.kernel + kx);
        }
      }
    }
    const int64_t to = at.row * a.channels + at.column * N;
    store<N>(a.y + to, narrowed<T>(best));
    store<N>(a.places + to, place);
  }
}

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) largest_backward_kernel(pictures<T> a) {
  for (walk at(a.channels / N); at.row < a.rows; at.next()) {
    const pixel p(at.row, a.high.pixels, a.wide.pixels);
    int64_t top, bottom, left, right;
    ek__pixel_windows(&top, &bottom, EK__WINDOW_MAX, &a.high, p.v);
    ek__pixel_windows(&left, &right, EK__WINDOW_MAX, &a.wide, p.h);
    pack<S, N> sum = {};
    for (int64_t v = top; v <= bottom; v++) {
      const int64_t ky = ek__window_element(&a.high, v, p.v);
      for (int64_t h = left; h <= right && ky >= 0; h++) {
        const int64_t kx = ek__window_element(&a.wide, h, p.h);
        if (kx < 0) continue;
        const int64_t row = (p.image * a.high.windows + v) * a.wide.windows + h;
        const int64_t from = row * a.channels + at.column * N;
        const pack<int32_t, N> place = load<N>(a.places + from);
        const pack<S, N> dy = widened<S>(load<N>(a.x + from));
        for (int j = 0; j < N; j++) {
          if (place.at[j] == ky * a.wide.kernel + kx) sum.at[j] += dy.at[j];
        }
      }
    }
    store<N>(a.y + at.row * a.channels + at.column * N, narrowed<T>(sum));
  }
}

/* BACK: from the windows of a pixel; else from the pixels of a window. */
template <class T, class S, int N, bool BACK>
__global__ void __launch_bounds__(BLOCK) mean_kernel(pictures<T> a) {
  const int64_t height = BACK ? a.high.windows : a.high.pixels;
  const int64_t width = BACK ? a.wide.windows : a.wide.pixels;
  for (walk at(a.channels / N); at.row < a.rows; at.next()) {
    const pixel p(at.row, BACK ? a.high.pixels : a.high.windows,
                  BACK ? a.wide.pixels : a.wide.windows);
    int64_t top, bottom, left, right;
    if (BACK) {
      ek__pixel_windows(&top, &bottom, a.kind(), &a.high, p.v);
      ek__pixel_windows(&left, &right, a.kind(), &a.wide, p.h);
    } else {
      ek__window_pixels(&top, &bottom, a.kind(), &a.high, p.v);
      ek__window_pixels(&left, &right, a.kind(), &a.wide, p.h);
    }
    pack<S, N> sum = {};
    for (int64_t v = top; v <= bottom; v++) {
      const double high = ek__window_weight(a.kind(), &a.high, BACK ? v : p.v, BACK ? p.v : v);
      for (int64_t h = left; h <= right; h++) {
        const double wide = ek__window_weight(a.kind(), &a.wide, BACK ? h : p.h, BACK ? p.h : h);
        const S weight = S(high * wide);
        if (weight == S(0)) continue; /* of a pixel that is in no window here */
        const int64_t from = (p.image * height + v) * width + h;
        const pack<S, N> x = widened<S>(load<N>(a.x + from * a.channels + at.column * N));
        for (int j = 0; j < N; j++) sum.at[j] += weight * x.at[j];
      }
    }
    store<N>(a.y + at.row * a.channels + at.column * N, narrowed<T>(sum));
  }
}

template <class T>
pictures<T> pictures_of(const struct ek__window_args *args, int64_t height, int64_t width) {
  return {as<T>(args->y),         as<T>(args->x), args->places,  args->images * height * width,
          args->channels,         args->kind,     args->side[0], args->side[1]};
}

template <class T>
cudaError_t run(const pictures<T> &a, void (*wide)(pictures<T>), void (*single)(pictures<T>),
                cudaStream_t stream) {
  if (a.rows <= 0 || a.channels <= 0) return cudaSuccess;
  const bool packs = a.channels % PACK<T> == 0 && aligned(a.y, a.x, a.places);
  return launch_flat(packs, PACK<T>, wide, single, a.rows * a.channels, stream, a);
}

template <class T, class S>
cudaError_t window_forward(const struct ek__cuda_place *at, const struct ek__window_args *args) {
  constexpr int N = PACK<T>;
  const pictures<T> a = pictures_of<T>(args, args->side[0].windows, args->side[1].windows);
  return args->kind == EK__WINDOW_MAX
             ? run(a, largest_kernel<T, S, N>, largest_kernel<T, S, 1>, at->stream)
             : run(a, mean_kernel<T, S, N, false>, mean_kernel<T, S, 1, false>, at->stream);
}

template <class T, class S>
cudaError_t window_backward(const struct ek__cuda_place *at, const struct ek__window_args *args) {
  constexpr int N = PACK<T>;
  const pictures<T> a = pictures_of<T>(args, args->side[0].pixels, args->side[1].pixels);
  return args->kind == EK__WINDOW_MAX
             ? run(a, largest_backward_kernel<T, S, N>, largest_backward_kernel<T, S, 1>,
                   at->stream)
             : run(a, mean_kernel<T, S, N, true>, mean_kernel<T, S, 1, true>, at->stream);
}

} // namespace

EK_CUDA_LAUNCHER(window_forward, window)
EK_CUDA_LAUNCHER(window_backward, window)
