/*
 * cpu_convolve_winograd.c - convolutions of 3 x 3 kernels with a stride of 1 by Winograd's
 * algorithm F(2 x 2, 3 x 3): 16 multiplications where the sums of the definition take 36.
 *
 * cpu_winograd.h has the formulas. Kernels are transformed once for a result (or their gradient
 * once, from the sums), into the workspace, as 16 matrices. Then
 *     y, dx     a thread takes a few tiles and some of the channels of the result. For each
 *               position it gathers a matrix of the tiles and multiplies it; of 16 products it
 *               makes results
 *     dweight   a thread takes positions. Tile by tile, in order, it gathers two matrices, of x and
 *               of dy, and adds their product to the sums
 * dx is a convolution of dy with the kernels turned round. Matrices of pixels are in the thread's
 * scratch (team.h). Where 16 matrices of kernels do not fit in the workspace, channels of the
 * result (or of x, for dweight) are taken in passes.
 *
 * What is computed together follows from the shapes alone, so results do not depend on the number
 * of threads. In f32 they are within the bound of docs/numerics.md, and exact for small whole
 * numbers: kernels become quarters. A number that is not finite makes all results of its tile NaN.
 */
#include "backend/cpu/cpu_convolve.h"
#include "backend/cpu/cpu_primitive.h"
#include "backend/cpu/cpu_winograd.h"

#include "core/error.h"

/* On AVX2 tiles of 64 channels are 1.3 to 2 times as fast as sums by the definition, of 32 as fast
 * or faster, of 24 slower (docs/results/2026-11-26-images.md). */
#define LEAST_CHANNELS 32
#define LEAST_GAIN 1.3 /* of multiplications: tiles at the edges of small pictures are cut */
#define MOST_TILES 256 /* that a thread takes */
#define LEAST_TILES 32
#define MOST_COLUMNS 256

struct job {
  const struct ek__convolve_args *args;
  const struct ek__cpu_functions *functions;
  struct ek__cpu_failure failure;
  struct ek__tiles seen, made; /* what products read: x, for dx dy. And y, dx; for dweight dy */
  int64_t tiles;
  int64_t depth, results; /* channels that products sum over, and that passes go through */
  int64_t pass;           /* results of a pass */
  int64_t block, chunk;   /* results and tiles that are computed at once */
  int64_t first, columns; /* of the pass */
  float *kernels;         /* 16 matrices: of results by depth; dweight: of depth by results */
  int64_t step;           /* elements of one */
};

/* ---- what is computed together ---- */

static int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
static int64_t parts_of(int64_t value, int64_t most) { return (value + most - 1) / most; }

static bool is_for_winograd(const struct ek__convolve_args *args) {
  const struct ek__convolution *s = args->shape;
  const bool type = args->types.value == EK_F32 || args->types.value == EK_F16 ||
                    (args->types.value == EK_BF16 && !ek__cpu_primitive_for_bf16());
  return type && s->groups == 1 && s->kernel[0] == 3 && s->kernel[1] == 3 && s->stride[0] == 1 &&
         s->stride[1] == 1 && s->channels >= LEAST_CHANNELS && s->out >= LEAST_CHANNELS;
}

static void set_tiles(struct job *job) {
  const struct ek__convolution *s = job->args->shape;
  const bool back = job->args->result == EK__CONVOLVE_DX;
  job->seen.channels = back ? s->out : s->channels;
  job->made.channels = back ? s->channels : s->out;
  job->tiles = s->images;
  for (int i = 0; i < 2; i++) {
    const int64_t dilation = s->dilation[i];
    const int64_t size = back ? s->in_size[i] : s->out_size[i];
    const int64_t count = parts_of(parts_of(size, dilation), 2);
    job->seen.size[i] = back ? s->out_size[i] : s->in_size[i];
    job->seen.first[i] = back ? s->padding[i] - 2 * dilation : -s->padding[i];
    job->made.size[i] = size;
    job->seen.dilation[i] = job->made.dilation[i] = dilation;
    job->seen.count[i] = job->made.count[i] = count;
    job->tiles *= dilation * count;
  }
}

/* False where little is won, or memory is too small. */
static bool plan(struct job *job) {
  const struct ek__convolve_args *args = job->args;
  const bool sums = args->result == EK__CONVOLVE_DWEIGHT;
  const int64_t most = (int64_t)(sizeof ek__team_scratch()->matrices / sizeof(float));
  set_tiles(job);
  const double pixels =
      (double)args->shape->images * (double)job->made.size[0] * (double)job->made.size[1];
  if (9 * pixels < LEAST_GAIN * EK__POSITIONS * (double)job->tiles) return false;
  job->depth = sums ? args->shape->out : job->seen.channels;
  job->results = sums ? args->shape->channels : job->made.channels;
  const int64_t columns =
      args->workspace_bytes / (EK__POSITIONS * (int64_t)sizeof(float) * job->depth);
  if (columns < job->results && columns < 2 * LEAST_CHANNELS) return false;
  job->pass = job->results;
  if (columns < job->results) {
    const int64_t whole = columns / 16 * 16;
    const int64_t even = up(parts_of(job->results, parts_of(job->results, whole)), 16);
    job->pass = even < whole ? even : whole;
  }
  job->block = up(parts_of(job->pass, parts_of(job->pass, MOST_COLUMNS)), 16);
  if (job->block > job->pass) job->block = job->pass;
  const int64_t line = sums ? job->depth + job->pass : job->depth + EK__POSITIONS * job->block;
  if (most / line < LEAST_TILES) return false;
  const int64_t chunk = most / line < MOST_TILES ? most / line / 8 * 8 : MOST_TILES;
  job->chunk = up(parts_of(job->tiles, parts_of(job->tiles, chunk)), 8);
  return true;
}

static int threads_for(const ek_stream *stream, int64_t items) {
  const int threads = ek__team_threads(ek__stream_backend(stream));
  return items < threads ? (int)items : threads;
}

/* ---- y and dx ---- */

static void gather(const struct job *job, const struct ek__winograd_gather_args *args,
                   int64_t tiles) {
  job->functions->winograd_gather(args, 0, tiles);
}

/* `tiles` of the results from tile `tile` and column `column` of the pass on. */
static ek_status make_results(struct job *job, int64_t tile, int64_t tiles, int64_t column,
                              int64_t columns) {
  const struct ek__convolve_args *args = job->args;
  float *pixels = (float *)(void *)ek__team_scratch()->matrices;
  float *products = pixels + tiles * job->depth;
  for (int position = 0; position < EK__POSITIONS; position++) {
    gather(job,
           &(struct ek__winograd_gather_args){.tiles = &job->seen,
                                              .pixels = args->result == EK__CONVOLVE_DX ? args->dy
                                                                                        : args->x,
                                              .matrix = pixels,
                                              .tile = tile,
                                              .columns = job->depth,
                                              .position = position},
           tiles);
    EK_TRY(ek__cpu_sgemm(
        &(struct ek__gemm){.m = tiles,
                           .n = columns,
                           .k = job->depth,
                           .alpha = 1,
                           .a = pixels,
                           .lda = job->depth,
                           .b = job->kernels + position * job->step + column * job->depth,
                           .ldb = job->depth,
                           .transpose_b = true,
                           .c = products + position * tiles * columns,
                           .ldc = columns}));
  }
  const struct ek__winograd_scatter_args results = {.tiles = &job->made,
                                                    .pixels = args->to,
                                                    .matrix = products,
                                                    .bias = args->bias,
                                                    .tile = tile,
                                                    .channel = job->first + column,
                                                    .columns = columns,
                                                    .step = tiles * columns};
  job->functions->winograd_scatter(&results, 0, tiles);
  return EK_OK;
}

static void make_part(void *raw, int part, int parts) {
  struct job *job = raw;
  const int64_t blocks = parts_of(job->columns, job->block);
  const int64_t items = parts_of(job->tiles, job->chunk) * blocks;
  for (int64_t item = part; item < items; item += parts) {
    const int64_t tile = item / blocks * job->chunk, column = item % blocks * job->block;
    const int64_t tiles = job->tiles - tile, columns = job->columns - column;
    ek__cpu_note(&job->failure, make_results(job, tile, tiles < job->chunk ? tiles : job->chunk,
                                             column, columns < job->block ? columns : job->block));
  }
}

/* Kernels of the pass, then its results. */
static void run_pass(ek_stream *stream, struct job *job) {
  const struct ek__convolve_args *args = job->args;
  const bool back = args->result == EK__CONVOLVE_DX;
  const struct ek__winograd_weights_args weights = {.weight = (void *)(uintptr_t)args->weight,
                                                    .matrix = job->kernels,
                                                    .row = job->first,
                                                    .columns = job->depth,
                                                    .row_step = back ? 9 : 9 * job->depth,
                                                    .column_step = back ? 9 * job->results : 9,
                                                    .step = job->step,
                                                    .turned = back};
  const int64_t items = parts_of(job->tiles, job->chunk) * parts_of(job->columns, job->block);
  ek__cpu_range(stream, job->functions->winograd_weights, &weights, job->columns,
                ek__cpu_least_rows(9 * job->depth));
  ek__team_run_with_scratch(ek__stream_backend(stream), threads_for(stream, items), make_part, job);
}

/* ---- dweight ---- */

/* Adds tiles to the sums of a position. */
static ek_status add_tiles(struct job *job, int position, int64_t tile, int64_t tiles) {
  float *x = (float *)(void *)ek__team_scratch()->matrices, *dy = x + tiles * job->columns;
  struct ek__winograd_gather_args pixels = {.tiles = &job->seen,
                                            .pixels = job->args->x,
                                            .matrix = x,
                                            .tile = tile,
                                            .channel = job->first,
                                            .columns = job->columns,
                                            .position = position};
  gather(job, &pixels, tiles);
  pixels.tiles = &job->made;
  pixels.pixels = job->args->dy;
  pixels.matrix = dy;
  pixels.channel = 0;
  pixels.columns = job->depth;
  pixels.gradient = true;
  gather(job, &pixels, tiles);
  return ek__cpu_sgemm(&(struct ek__gemm){.transpose_a = true,
                                          .m = job->depth,
                                          .n = job->columns,
                                          .k = tiles,
                                          .alpha = 1,
                                          .a = dy,
                                          .lda = job->depth,
                                          .b = x,
                                          .ldb = job->columns,
                                          .beta = tile == 0 ? 0 : 1,
                                          .c = job->kernels + position * job->step,
                                          .ldc = job->columns});
}

static void add_part(void *raw, int part, int parts) {
  struct job *job = raw;
  for (int64_t tile = 0; tile < job->tiles; tile += job->chunk) {
    const int64_t rest = job->tiles - tile;
    for (int position = part; position < EK__POSITIONS; position += parts) {
      ek__cpu_note(&job->failure,
                   add_tiles(job, position, tile, rest < job->chunk ? rest : job->chunk));
    }
  }
}

static void sum_pass(ek_stream *stream, struct job *job) {
  const struct ek__winograd_weights_args weights = {.weight =
                                                        (float *)job->args->to + 9 * job->first,
                                                    .matrix = job->kernels,
                                                    .columns = job->columns,
                                                    .row_step = 9 * job->results,
                                                    .column_step = 9,
                                                    .step = job->step,
                                                    .scale = job->args->scale};
  ek__team_run_with_scratch(ek__stream_backend(stream), threads_for(stream, EK__POSITIONS),
                            add_part, job);
  if (job->failure.status != EK_OK) return; /* dweight is as it was */
  ek__cpu_range(stream, job->functions->winograd_sums, &weights, job->depth,
                ek__cpu_least_rows(9 * job->columns));
}

ek_status ek__cpu_convolve_winograd(bool *done, ek_stream *stream,
                                    const struct ek__convolve_args *args) {
  struct job job = {.args = args,
                    .functions = ek__cpu_functions(args->types),
                    .failure = EK__CPU_NO_FAILURE,
                    .kernels = (float *)(void *)args->workspace};
  if (!is_for_winograd(args) || !plan(&job)) return EK_OK;
  for (job.first = 0; job.first < job.results && job.failure.status == EK_OK;
       job.first += job.pass) {
    const int64_t rest = job.results - job.first;
    job.columns = rest < job.pass ? rest : job.pass;
    job.step = job.columns * job.depth;
    if (args->result == EK__CONVOLVE_DWEIGHT) {
      sum_pass(stream, &job);
    } else {
      run_pass(stream, &job);
    }
  }
  EK_TRY(ek__cpu_failed(&job.failure));
  *done = true;
  return EK_OK;
}
