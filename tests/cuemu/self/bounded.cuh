/*
 * bounded.cuh - a template of a kernel in a header.
 */
template <class T, int WIDTH>
__global__ void __launch_bounds__(WIDTH * 3, 2)
    bounded_by_parameter(T *out) {
  out[threadIdx.y * WIDTH + threadIdx.x] = 2;
}
