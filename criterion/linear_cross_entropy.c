/*
 * linear_cross_entropy.c - a head and its loss over blocks of rows.
 *
 * The gradient of the sum of losses needs nothing from other rows, devices or micro-batches,
 * because the division by D comes with the update. So all work on a block of logits is done before
 * the next block replaces it:
 *
 *     forward, scale known     losses and gradient g over the logits, dW += g^T h, dh = g W
 *     forward, scale unknown   losses; backward: logits again, g from the normalizers, dW, dh
 *     forward, no gradient     losses
 *
 * If h may be overwritten, dh_i is written over h_i, which is not needed once it is in dW. The
 * memory of a block is charged to `loss`, although it is freed when the function returns, because
 * this is the memory that the module saves.
 *
 * All blocks between the first and the last are alike. A device that only counts runs one of them
 * and counts it for all, so the time of a plan does not depend on the number of rows.
 */
#include <evenkeel/linear_cross_entropy.h>

#include <inttypes.h>
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "entropy_terms.h"
#include "module/layer_internal.h"
#include "module/product.h"

struct linear_cross_entropy {
  ek_criterion base;
  struct ek__entropy entropy;
  struct ek__affine head;
  uint64_t logits_bytes;
};

static ek_status declare(const ek_module *self, ek_declaration *declaration) {
  const struct linear_cross_entropy *m = (const struct linear_cross_entropy *)self;
  EK_TRY(ek__affine_declare(&m->head, declaration));
  return ek__entropy_declare(&m->entropy, declaration);
}

/* ---- blocks ---- */

/*
 * Blocks of nearly equal size, none above the limit: the products are as efficient in the last. Of
 * r rows they are 6 r V C operations, and reading W twice and dW once more, and writing dW, 16 V C
 * bytes: with this many rows more would gain nothing.
 */
enum { ENOUGH_ROWS = 1024 };

static int64_t rows_of_block(const struct linear_cross_entropy *m, int64_t rows, int64_t columns,
                             ek_type type) {
  const uint64_t row = (uint64_t)columns * ek_type_size(type);
  const uint64_t limit = m->logits_bytes / row;
  const int64_t wanted = rows < ENOUGH_ROWS ? rows : ENOUGH_ROWS;
  const int64_t most = limit >= (uint64_t)wanted ? wanted : limit > 0 ? (int64_t)limit : 1;
  if (rows == 0) return 0;
  const int64_t blocks = (rows - 1) / most + 1, even = (rows - 1) / blocks + 1;
  const int64_t round = (even + 15) / 16 * 16; /* whole tiles of a product */
  return round <= most ? round : even;
}

/* The tensors of a walk over the blocks. close_work() frees those that hold a reference. */
struct work {
  const struct linear_cross_entropy *m;
  ek_pass *pass;
  ek_stream *stream;
  int64_t rows, block;
  ek_tensor h, targets;                  /* [rows, in], [rows]; hold references */
  ek_tensor logits;                      /* [block, out and padding]; holds one */
  ek_tensor weight, bias, class_weights; /* loans */
  ek_cross_entropy_terms terms;
  /* The gradients, if they are computed: */
  ek_tensor dh;             /* [rows, in], perhaps h; holds a reference; absent: not wanted */
  ek_tensor dweight, dbias; /* absent: not wanted; where dbias is there dweight is, too */
  double weight_beta, bias_beta;
};

static void close_work(struct work *w) {
  ek_tensor_free(&w->dh);
  ek_tensor_free(&w->logits);
  ek_tensor_free(&w->targets);
  ek_tensor_free(&w->h);
}

/* Products are as wide as the weight has rows in memory; a bias has no more than its elements. The
 * columns after the classes have zeros for a gradient. */
static int64_t padded_rows(const struct work *w, bool gradient) {
  return w->m->head.bias ? w->m->head.out : ek_pass_padded_rows(w->pass, EK__WEIGHT, gradient);
}

static ek_status fill_work(struct work *w, const ek_tensor *h, const ek_tensor *targets) {
  const struct linear_cross_entropy *m = w->m;
  w->rows = ek_tensor_count(h) / m->head.in;
  const int64_t matrix[] = {w->rows, m->head.in};
  EK__FAIL_IF(ek_tensor_count(targets) != w->rows, EK_ERR_SHAPE,
              "%" PRId64 " targets for %" PRId64 " rows", ek_tensor_count(targets), w->rows);
  EK_TRY(ek_tensor_reshape(&w->h, h, 2, matrix));
  EK_TRY(ek_tensor_reshape(&w->targets, targets, 1, &w->rows));
  EK_TRY(ek_pass_parameter(&w->weight, w->pass, EK__WEIGHT));
  w->weight.shape[0] = padded_rows(w, false);
  if (m->head.bias) EK_TRY(ek_pass_parameter(&w->bias, w->pass, EK__BIAS));
  EK_TRY(ek__entropy_terms(&w->terms, &w->class_weights, &m->entropy, w->pass,
                           (size_t)(m->head.bias ? EK__BIAS : EK__WEIGHT) + 1, m->head.out));
  if (w->terms.classes == 0) w->terms.classes = m->head.out; /* rows of logits are padded */
  const int64_t columns = ek_tensor_aligned_columns(w->weight.shape[0], h->type);
  w->block = rows_of_block(m, w->rows, columns, h->type);
  const int64_t block[] = {w->block, columns};
  return ek_pass_output(&w->logits, w->pass, h->type, 2, block);
}

/* *w points into itself: it is filled where it stays. */
static ek_status open_work(struct work *w, const ek_module *self, ek_pass *pass, const ek_tensor *h,
                           const ek_tensor *targets) {
  *w = (struct work){
      .m = (const struct linear_cross_entropy *)self, .pass = pass, .stream = ek_pass_stream(pass)};
  EK_TRY(ek__layer_check(pass, h, w->m->head.in));
  const ek_status status = fill_work(w, h, targets);
  if (status != EK_OK) close_work(w);
  return status;
}

/* From now on blocks have gradients; dh: where that of h goes, NULL if it is not wanted. */
static ek_status want_gradients(struct work *w, const ek_tensor *dh) {
  const int64_t matrix[] = {w->rows, w->m->head.in};
  if (w->rows == 0) return EK_OK; /* nothing would overwrite them */
  if (dh != NULL) EK_TRY(ek_tensor_reshape(&w->dh, dh, 2, matrix));
  const bool with_bias = w->m->head.bias && ek_pass_trains(w->pass, EK__BIAS);
  if (with_bias) EK_TRY(ek_pass_gradient(&w->dbias, &w->bias_beta, w->pass, EK__BIAS));
  if (!with_bias && !ek_pass_trains(w->pass, EK__WEIGHT)) return EK_OK;
  EK_TRY(ek_pass_gradient(&w->dweight, &w->weight_beta, w->pass, EK__WEIGHT));
  w->dweight.shape[0] = padded_rows(w, true);
  return EK_OK;
}

static ek_status complete_gradients(const struct work *w) {
  EK_TRY(ek_pass_gradient_complete(w->pass, EK__WEIGHT));
  return w->m->head.bias ? ek_pass_gradient_complete(w->pass, EK__BIAS) : EK_OK;
}

/* Rows of a block, without a reference: whoever holds the whole outlives it. */
static ek_status rows_of(ek_tensor *view, const ek_tensor *of, int64_t first, int64_t count) {
  EK_TRY(ek_tensor_rows(view, of, first, count));
  ek_tensor held = *view;
  ek_tensor_free(&held);
  return EK_OK;
}

/* The rows of one block. */
struct block {
  int64_t first, count;
  ek_tensor h, targets, logits;
};

static ek_status begin_block(struct block *b, struct work *w, int64_t first) {
  ek_device_mark_work(ek_pass_device(w->pass));
  b->first = first;
  b->count = w->rows - first < w->block ? w->rows - first : w->block;
  EK_TRY(rows_of(&b->h, &w->h, first, b->count));
  EK_TRY(rows_of(&b->targets, &w->targets, first, b->count));
  EK_TRY(rows_of(&b->logits, &w->logits, 0, b->count));
  return ek_op_linear(w->stream, &b->logits, &b->h, &w->weight,
                      w->m->head.bias ? &w->bias : NULL);
}

/* The first row of the block after the one at `first`. */
static int64_t block_after(struct work *w, int64_t first) {
  const int64_t alike = (w->rows - 1) / w->block - 1; /* blocks between the first and the last */
  if (first != w->block || alike < 2 ||
      !ek_device_repeat_work(ek_pass_device(w->pass), alike - 1)) {
    return first + w->block;
  }
  return (alike + 1) * w->block;
}

/* The logits of the block hold their gradient: dW first, for which h must still be there. */
static ek_status use_gradient(struct work *w, const struct block *b) {
  ek_tensor dh;
  if (ek_tensor_exists(&w->dweight)) {
    EK_TRY(ek_op_linear_gradients(w->stream, &w->dweight,
                                  ek_tensor_exists(&w->dbias) ? &w->dbias : NULL, &b->logits, &b->h,
                                  w->weight_beta, w->bias_beta));
  }
  w->weight_beta = w->bias_beta = 1;
  if (!ek_tensor_exists(&w->dh)) return EK_OK;
  EK_TRY(rows_of(&dh, &w->dh, b->first, b->count));
  return ek_op_linear_backward(w->stream, &dh, &b->logits, &w->weight);
}

/* ---- forward ---- */

/* The results of a walk forward besides gradients. Tensors of `kept` rows have all rows of the
 * batch, the others those of a block. */
struct results {
  ek_tensor losses, normalizer;
  bool keep_losses, keep_normalizer;
  ek_tensor totals, part; /* f64 {s, d}: of all, of a block */
};

static void free_results(struct results *r) {
  ek_tensor_free(&r->part);
  ek_tensor_free(&r->normalizer);
  ek_tensor_free(&r->losses);
}

/* losses has the shape of h except for the last dimension where all of them are wanted. */
static ek_status make_results(struct results *r, const struct work *w, const ek_tensor *h) {
  const int64_t pairs[] = {r->keep_normalizer ? w->rows : w->block, 2}, pair[] = {1, 2};
  const ek_type sums = ek_type_of_sums(h->type);
  EK_TRY(ek_pass_output(&r->normalizer, w->pass, sums, 2, pairs));
  EK_TRY(r->keep_losses ? ek_pass_output(&r->losses, w->pass, sums, h->rank - 1, h->shape)
                        : ek_pass_output(&r->losses, w->pass, sums, 1, &w->block));
  if (w->block == w->rows) return EK_OK;
  return ek_pass_output(&r->part, w->pass, EK_F64, 2, pair);
}

static ek_status forward_block(struct work *w, const struct results *r, const ek_tensor *losses,
                               int64_t first, const double *scale) {
  struct block b;
  ek_tensor loss, normalizer, totals = first == 0 ? r->totals : r->part;
  EK_TRY(begin_block(&b, w, first));
  EK_TRY(rows_of(&loss, losses, r->keep_losses ? first : 0, b.count));
  EK_TRY(rows_of(&normalizer, &r->normalizer, r->keep_normalizer ? first : 0, b.count));
  if (scale == NULL) {
    EK_TRY(ek_op_cross_entropy_forward(w->stream, &loss, &normalizer, &totals, &b.logits,
                                       &b.targets, &w->terms));
  } else {
    ek_tensor gradient = b.logits;
    EK_TRY(ek_op_cross_entropy_gradient(w->stream,
                                        &(ek_cross_entropy_gradient_args){.gradient = &gradient,
                                                                          .losses = &loss,
                                                                          .normalizer = &normalizer,
                                                                          .totals = &totals,
                                                                          .logits = &b.logits,
                                                                          .targets = &b.targets,
                                                                          .scale = *scale,
                                                                          .terms = &w->terms}));
    EK_TRY(use_gradient(w, &b));
  }
  if (first == 0) return EK_OK;
  totals = r->totals;
  return ek_op_add(w->stream, &totals, &totals, &r->part);
}

/* scale: of the gradients that are computed at once; NULL: none are. */
static ek_status walk_forward(struct work *w, const struct results *r, const double *scale) {
  ek_tensor losses = r->losses, totals = r->totals;
  if (w->rows == 0) EK_TRY(ek_op_zero(w->stream, &totals));
  losses.rank = 1;
  losses.shape[0] = r->keep_losses ? w->rows : w->block;
  for (int64_t first = 0; first < w->rows; first = block_after(w, first)) {
    EK_TRY(forward_block(w, r, &losses, first, scale));
  }
  return scale == NULL ? EK_OK : complete_gradients(w);
}

static ek_status save_for_backward(ek_pass *pass, const ek_tensor *inputs,
                                   const ek_tensor *normalizer) {
  EK_TRY(ek_pass_save(pass, &inputs[0]));
  EK_TRY(ek_pass_save(pass, &inputs[1]));
  return ek_pass_save(pass, normalizer);
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const ek_tensor *h = &inputs[0];
  struct work w;
  struct results r = {.keep_losses = ek_module_outputs(self) == 2};
  ek_tensor dh = {0};
  double scale = 0;
  ek_status status = EK_OK;
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  const bool over = ek_pass_gradient_now(&scale, pass);
  const bool now = over || ek_pass_known_scale(&scale, pass);
  EK_TRY(open_work(&w, self, pass, h, &inputs[1])); /* holds h, too */
  r.totals = outputs[0];
  r.keep_normalizer = !now && ek_pass_wants_gradient(pass);
  if (now) {
    if (!over) EK_TRY_GOTO(status, ek_pass_output(&dh, pass, h->type, h->rank, h->shape), cleanup);
    EK_TRY_GOTO(status, want_gradients(&w, over ? h : &dh), cleanup);
  }
  EK_TRY_GOTO(status, make_results(&r, &w, h), cleanup);
  EK_TRY_GOTO(status, walk_forward(&w, &r, now ? &scale : NULL), cleanup);
  if (r.keep_losses) EK_TRY_GOTO(status, ek_tensor_share(&outputs[1], &r.losses), cleanup);
  if (over) goto cleanup;
  EK_TRY_GOTO(status,
              now ? ek_pass_save(pass, &dh) : save_for_backward(pass, inputs, &r.normalizer),
              cleanup);
cleanup:
  free_results(&r);
  ek_tensor_free(&dh);
  close_work(&w);
  return status;
}

/* ---- backward ---- */

/* The tensors that forward saved because it did not know the scale. */
enum { H, TARGETS, NORMALIZER, SAVED };

/* Either one scale for all rows, or factors of the single losses. */
static ek_status walk_backward(struct work *w, const ek_tensor *normalizer, const ek_tensor *scale,
                               const ek_tensor *factors) {
  ek_tensor row_scales = {0}; /* the factors of all rows, a loan */
  if (factors != NULL) {
    row_scales = *factors;
    row_scales.rank = 1;
    row_scales.shape[0] = w->rows;
  }
  for (int64_t first = 0; first < w->rows; first = block_after(w, first)) {
    struct block b;
    ek_tensor pairs, own = {0};
    EK_TRY(begin_block(&b, w, first));
    EK_TRY(rows_of(&pairs, normalizer, first, b.count));
    if (factors != NULL) EK_TRY(rows_of(&own, &row_scales, first, b.count));
    ek_tensor gradient = b.logits;
    EK_TRY(ek_op_cross_entropy_backward(w->stream, &gradient, &b.logits, &pairs, &b.targets,
                                        factors == NULL ? scale : NULL,
                                        factors == NULL ? NULL : &own, &w->terms));
    EK_TRY(use_gradient(w, &b));
  }
  return complete_gradients(w);
}

/* Forward knew the scale, and saved the gradient of h. */
static ek_status take_gradient(ek_pass *pass, ek_tensor *grad_inputs) {
  ek_tensor dh = {0};
  EK_TRY(ek_pass_take(&dh, pass));
  if (grad_inputs == NULL) {
    ek_tensor_free(&dh);
  } else {
    grad_inputs[0] = dh;
  }
  return EK_OK;
}

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
  struct work w = {0};
  ek_tensor saved[SAVED];
  double known = 0;
  ek_status status = EK_OK;
  if (ek_pass_known_scale(&known, pass)) return take_gradient(pass, grad_inputs);
  EK_TRY(ek__layer_take(saved, pass, SAVED));
  if (grad_inputs != NULL) {
    EK_TRY_GOTO(status, ek_pass_input_gradient(&grad_inputs[0], pass, &saved[H]), cleanup);
  }
  EK_TRY_GOTO(status, open_work(&w, self, pass, &saved[H], &saved[TARGETS]), cleanup);
  EK_TRY_GOTO(status, want_gradients(&w, grad_inputs), cleanup);
  status = walk_backward(&w, &saved[NORMALIZER], &scale,
                         ek_module_outputs(self) == 2 ? &grad_outputs[1] : NULL);
cleanup:
  close_work(&w);
  ek__free_all(saved, SAVED);
  return status;
}

/* ---- the logits, whole ---- */

static ek_status predict(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const ek_formula head = ek__affine_formula(&((const struct linear_cross_entropy *)self)->head);
  return ek__product_forward(&head, pass, &inputs[0], &outputs[0], 0); /* nothing is saved here */
}

static void release(ek_module *self) {
  ek__entropy_close(&((struct linear_cross_entropy *)self)->entropy);
  ek__free(self);
}

/* Of the targets. */
static ek_type input_type(const ek_module *self, size_t input) {
  return input + ek_module_targets(self) >= ek_module_inputs(self) ? EK_I32 : (ek_type)0;
}

static const ek_module_ops ops = {EK__LAYER("linear_cross_entropy", forward, backward, release),
                                  .parameters = declare, .predict = predict,
                                  .input_type = input_type};

/* ---- creation ---- */

static ek_status check(int64_t out, const ek_linear_cross_entropy_options *o,
                       const struct ek__entropy *entropy) {
  EK__FAIL_IF(o->logits_bytes == 0, EK_ERR_INVALID_ARGUMENT,
              "linear_cross_entropy: logits_bytes is 0, expected above 0");
  if (entropy->classes <= out) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "linear_cross_entropy: %" PRId64 " classes, but %" PRId64 " logits",
                      entropy->classes, out);
}

static ek_status fill(struct linear_cross_entropy *m, const ek_linear_cross_entropy_options *o) {
  ek_criterion_options base = EK_CRITERION_OPTIONS_INIT;
  EK_TRY(ek__entropy_open(&m->entropy, &base.reduction, NULL, ops.kind, o->loss));
  EK_TRY(check(m->head.out, o, &m->entropy));
  base.predictions = 1;
  EK_TRY(ek_criterion_init_with(&m->base, &ops, &base));
  m->logits_bytes = o->logits_bytes;
  return EK_OK;
}

ek_status ek_linear_cross_entropy_create(ek_criterion **criterion, int64_t in, int64_t out,
                                         const ek_linear_cross_entropy_options *options) {
  ek_linear_cross_entropy_options o = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  EK__NOT_NULL("linear_cross_entropy", criterion);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_linear_cross_entropy_options"));
  struct linear_cross_entropy made = {0};
  EK_TRY(ek__affine_fill(&made.head, ops.kind, in, out, o.bias, o.weight));
  made.head.frozen = o.frozen;
  made.head.no_decay = o.no_decay;
  made.head.elementwise = true; /* its rows are classes */
  ek_status status = fill(&made, &o);
  if (status == EK_OK) status = ek__new_copy(criterion, &made, sizeof made, "linear_cross_entropy");
  if (status != EK_OK) ek__entropy_close(&made.entropy);
  return status;
}

EK__OPTIONS_INIT(ek_linear_cross_entropy_options, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT)
