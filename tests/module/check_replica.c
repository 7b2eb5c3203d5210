/*
 * check_replica.c - one device's parameters and gradients for a module.
 */
#include "ck_gpt.h"
#include "ck_module.h"

static ek_module *tiny_gpt(void) {
  const ek_gpt_options options = ck_gpt_sizes(7, 5, 6, 2, 3);
  CK_OPENED(ek_module *, module, ek_gpt_create(&module, &options));
  return module;
}

struct bench {
  ek_group *group;
  ek_device *device;
  ek_module *module;
};

static struct bench bench_open(const char *spec, ek_module *module) {
  struct bench bench = {.group = ck_open(spec, 1), .module = module};
  bench.device = ek_group_device(bench.group, 0);
  return bench;
}

CK_LOOP(layout, 2) {
  struct bench bench = bench_open("cpu:1", tiny_gpt());
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = _i == 0 ? EK_F32 : EK_F64);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, &options));
  ck_assert_ptr_eq(ek_replica_device(replica), bench.device);
  ck_assert_ptr_eq(ek_replica_module(replica), bench.module);
  ck_assert_int_eq(ek_replica_type(replica), options.type);
  const ek_tensor *flat = ek_replica_parameters(replica);
  const ek_tensor *gradients = ek_replica_gradients(replica);
  ck_assert_int_eq(flat->rank, 1);
  ck_assert_int_eq(flat->type, options.type);
  ck_assert(ek_tensor_same_shape(flat, gradients));
  ck_assert_int_eq(ek_tensor_count(ek_replica_buffers(replica)), 0);

  double *values = ck_got(flat), *slopes = ck_got(gradients);
  const size_t size = ek_type_size(options.type);
  int64_t end = 0;
  const size_t count = ek_replica_parameter_count(replica);
  for (size_t i = 0; i < 2 * count; i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, replica, i % count));
    ck_assert(!info.buffer);
    if (info.no_decay != (i < count)) continue; /* those without decay come before the others */
    ck_assert_int_eq(info.offset % 16, 0);
    ck_assert_int_ge(info.offset, end); /* else in declaration order, no overlap */
    ck_assert_int_lt(info.offset - end, 16);
    for (int64_t k = end; k < info.offset; k++) ck_assert(values[k] == 0 && slopes[k] == 0);
    end = info.offset + ek_tensor_count(&info.value);
    ck_assert_ptr_eq(info.value.data, (char *)flat->data + (size_t)info.offset * size);
    ck_assert_ptr_eq(info.gradient.data, (char *)gradients->data + (size_t)info.offset * size);
    ck_assert(ek_tensor_same_shape(&info.value, &info.gradient));
  }
  ck_assert_int_ge(ek_tensor_count(flat), end);
  for (int64_t k = end; k < ek_tensor_count(flat); k++) ck_assert(values[k] == 0 && slopes[k] == 0);
}

CK_TEST(find) {
  struct bench bench = bench_open("cpu:1", tiny_gpt());
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, NULL));
  const size_t count = ek_replica_parameter_count(replica);
  ck_assert_uint_eq(count, 28);
  ek_parameter_info info, found;
  for (size_t i = 0; i < count; i++) {
    ck_ok(ek_replica_parameter(&info, replica, i));
    ck_ok(ek_replica_find(&found, replica, info.name));
    ck_assert_int_eq(found.offset, info.offset);
  }
  ck_ok(ek_replica_find(&info, replica, "tokens.weight"));
  ck_ok(ek_replica_find(&found, replica, "head.weight"));
  ck_assert_int_eq(found.offset, info.offset);
  ck_fails(ek_replica_find(&found, replica, "head.bias"), EK_ERR_NOT_FOUND, "head.bias");
  ck_fails(ek_replica_find(&found, replica, ""), EK_ERR_NOT_FOUND, "");
  ck_fails(ek_replica_find(&found, replica, "tokens"), EK_ERR_NOT_FOUND, "tokens");
  ck_invalid(ek_replica_parameter(&found, replica, count), "");
  ck_invalid(ek_replica_parameter(&found, replica, SIZE_MAX), "");
}

static double *start_values(const struct bench *bench, ek_module *module, uint64_t seed,
                            ek_type type) {
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .seed = seed, .type = type);
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, bench->device, module, &options));
  double *values = ck_got(ek_replica_parameters(replica));
  ek_replica_free(replica);
  return values;
}

CK_TEST(seeds) {
  CK_OPENED(ek_module *, module, ek_linear_create(&module, 6, 7, false));
  struct bench bench = bench_open("cpu:1", module);
  double *first = start_values(&bench, module, 1, EK_F32);
  double *again = start_values(&bench, module, 1, EK_F32);
  double *other = start_values(&bench, module, 2, EK_F32);
  double *wide = start_values(&bench, module, 1, EK_F64);
  ck_within("the same seed", again, first, NULL, 42);
  int equal = 0;
  for (int i = 0; i < 42; i++) equal += first[i] == other[i];
  ck_assert_int_lt(equal, 3);
  /* The types see the same numbers, rounded. */
  for (int i = 0; i < 42; i++) ck_assert_double_le(fabs(wide[i] - first[i]), 0x1p-23);
}

/* Box and Muller from counters: element number k of the parameter, as the numbers are defined. */
static double normal_value(uint64_t seed, const char *name, int64_t k) {
  uint32_t hash = 2166136261u, bits[4];
  for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
  const ek_random_key key = {seed, UINT32_MAX, hash};
  ek_random_bits(key, (uint32_t)(k / 4 >> 32), (uint32_t)(k / 4), bits);
  const double a = bits[k % 4 / 2 * 2], b = bits[k % 4 / 2 * 2 + 1];
  const double radius = sqrt(-2.0 * log((a + 1.0) / 4294967296.0));
  const double angle = 6.283185307179586 * (b / 4294967296.0);
  return radius * (k % 2 == 0 ? cos(angle) : sin(angle));
}

/* More than a piece, which no number of threads divides; in f32 the rounded number. */
CK_LOOP(values_of_a_large_table, 2) {
  enum { ENTRIES = 1031, WIDTH = 611 };
  const ek_type type = _i == 0 ? EK_F32 : EK_F64;
  const ek_initializer start = ek_initializer_normal(0.5, 0.125);
  CK_WITH(ek_embedding_options, options, EK_EMBEDDING_OPTIONS_INIT, .weight_start = &start);
  CK_OPENED(ek_module *, module, ek_embedding_create_with(&module, ENTRIES, WIDTH, &options));
  struct bench bench = bench_open("cpu:1", module);
  double *values = start_values(&bench, module, 9, type);
  for (int64_t k = 0; k < (int64_t)ENTRIES * WIDTH; k++) {
    double want = 0.5 + 0.125 * normal_value(9, "weight", k);
    if (type == EK_F32) want = (float)want;
    if (values[k] != want) ck_abort_msg("element %lld: %.17g", (long long)k, values[k]);
  }
}

/* Values depend on the full name: what else is in the model, and in which order, does not matter.
 */
CK_TEST(values_depend_on_names) {
  struct bench bench = bench_open("cpu:1", NULL);
  CK_OPENED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  CK_OPENED(ek_module *, linear, ek_linear_create(&linear, 4, 4, false));
  CK_OPENED(ek_module *, module, ek_sequential_create(&module, (ek_module *[]){relu, linear}, 2));
  CK_OPENED(ek_module *, longer, ek_sequential_create(&longer, (ek_module *[]){linear, linear}, 2));
  double *alone = start_values(&bench, module, 3, EK_F32); /* 1.weight */
  double *pair = start_values(&bench, longer, 3, EK_F32);        /* 0.weight, 1.weight */
  ck_within("1.weight", pair + 16, alone, NULL, 16);
  ck_assert(ck_rel_l2(pair, alone, 16) > 0.1);
}

/* Biases and the weights of norms are declared to be without weight decay. */
CK_TEST(decay) {
  struct bench bench = bench_open("plan:1", tiny_gpt());
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, NULL));
  CK_EACH_PARAMETER(info, replica) {
    ck_assert_msg(info.no_decay == (info.value.rank == 1), "%s", info.name);
    ck_assert(!info.frozen);
  }
}

/* ---- declarations with options and values ---- */

enum { MANY = 2051 }; /* more than are converted at a time, and no multiple of 4 */
static double many[MANY];

static ek_status declare_all(const ek_module *self, ek_declaration *d) {
  static const int64_t size[] = {MANY};
  (void)self;
  CK_WITH(ek_parameter_options, options, EK_PARAMETER_OPTIONS_INIT, .frozen = true);
  EK_TRY(ek_declare_parameter_with(d, "frozen", 1, size, ek_initializer_values(many), &options));
  EK_TRY(ek_declare_parameter(d, "tied", 1, size, ek_initializer_zeros()));
  EK_TRY(ek_declare_tie(d, "tied", "frozen"));
  options = (ek_parameter_options)EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  EK_TRY(ek_declare_parameter_with(d, "whole", 1, size, ek_initializer_zeros(), &options));
  EK_TRY(ek_declare_parameter_with(d, "plain", 1, size, ek_initializer_zeros(), NULL));
  EK_TRY(ek_declare_tie(d, "whole", "plain"));
  return ek_declare_buffer(d, "buffer", 1, size, ek_initializer_values(many));
}

CK_FORWARD(no) { return EK_ERR_INTERNAL; }

static const ek_module_ops declaring = {CK_OPS("declaring", no_forward, no_forward, ck_no_free),
                                        .parameters = declare_all,
                                        .types = EK_TYPES_F32 | EK_TYPES_F64};

/* Of tied parameters the source's options and values hold. */
CK_LOOP(options_and_values, 2) {
  struct bench bench = bench_open("cpu:1", NULL);
  static ek_module module; /* freed after the test */
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = _i == 0 ? EK_F32 : EK_F64);
  for (int i = 0; i < MANY; i++) many[i] = i / 3.0;
  ck_ok(ek_module_init(&module, &declaring, 1, 1));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, &module, &options));
  static const char *const names[] = {"frozen", "tied", "whole", "plain", "buffer"};
  for (int n = 0; n < 5; n++) {
    CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, names[n]));
    ck_assert_int_eq(info.frozen, n < 2);
    ck_assert(!info.no_decay);
    double *values = ck_got(&info.value);
    for (int i = 0; i < MANY; i++) {
      const double expected = options.type == EK_F32 ? (double)(float)many[i] : many[i];
      if (values[i] != (n < 2 || n == 4 ? expected : 0)) ck_abort_msg("%s[%d]", names[n], i);
    }
  }
}

/* ---- options of the layers ---- */

/* What is asked of a layer. Each layer has two weights of six numbers at most. */
struct wishes {
  bool bias, frozen, no_decay;
  const ek_initializer *first, *second, *of_bias; /* of_bias: the second where there is a bias */
};
static const double first[] = {1, 2, 3, 4, 5, 6}, second[] = {7, 8, 9, 10, 11, 12};

/* noun_with(), which makes the layer of the call, with options `o` that are set by what follows. */
#define LAYER(noun, init, call, ...)                                                               \
  static ek_status noun##_with(ek_module **module, const struct wishes *w) {                       \
    ek_##noun##_options o = init;                                                                  \
    ck_assign(o, .frozen = w->frozen, __VA_ARGS__);                                                \
    return call;                                                                                   \
  }
LAYER(linear, EK_LINEAR_OPTIONS_INIT, ek_linear_create_with(module, 2, 3, &o), .bias = w->bias,
      .no_decay = w->no_decay, .weight_start = w->first, .bias_start = w->of_bias)
LAYER(conv2d, EK_CONV2D_OPTIONS_INIT, ek_conv2d_create_with(module, 2, 3, &o), .bias = w->bias,
      .no_decay = w->no_decay, .weight_start = w->first, .bias_start = w->of_bias)
LAYER(embedding, EK_EMBEDDING_OPTIONS_INIT, ek_embedding_create_with(module, 2, 3, &o),
      .positions = 1, .no_decay = w->no_decay, .weight_start = w->first,
      .positions_start = w->second)
LAYER(layer_norm, EK_LAYER_NORM_OPTIONS_INIT, ek_layer_norm_create_with(module, 3, &o),
      .bias = w->bias, .weight_start = w->first, .bias_start = w->of_bias)
LAYER(group_norm, EK_GROUP_NORM_OPTIONS_INIT, ek_group_norm_create_with(module, 3, 1, &o),
      .affine = w->bias, .weight_start = w->bias ? w->first : NULL)
LAYER(batch_norm, EK_BATCH_NORM_OPTIONS_INIT, ek_batch_norm_create_with(module, 3, &o),
      .affine = w->bias, .weight_start = w->bias ? w->first : NULL, .track = false)
LAYER(attention, EK_ATTENTION_OPTIONS_INIT, ek_attention_create_with(module, 4, 2, &o),
      .bias = w->bias, .no_decay = w->no_decay, .qk_norm = EK_QK_NORM_LAYER)
LAYER(swiglu, EK_SWIGLU_OPTIONS_INIT, ek_swiglu_create_with(module, 2, 3, &o), .bias = w->bias,
      .no_decay = w->no_decay, .weight_start = w->first, .down_start = w->second)

static ek_status head_with(ek_module **module, const struct wishes *w) {
  ek_criterion *head = NULL;
  CK_WITH(ek_linear_cross_entropy_options, o, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT,
          .bias = w->bias, .frozen = w->frozen, .no_decay = w->no_decay, .weight = w->first);
  EK_TRY(ek_linear_cross_entropy_create(&head, 2, 3, &o));
  *module = &head->base;
  return EK_OK;
}

static const struct layer {
  ek_status (*create)(ek_module **module, const struct wishes *wishes);
  size_t parameters[2]; /* without a bias, and with it */
  const char *second;   /* what begins with those numbers, or NULL; other biases begin with zeros */
  bool norm, unknown;   /* unknown: one cannot say with which numbers it begins */
} layers[] = {{.create = linear_with, .parameters = {1, 2}, .second = "bias"},
              {.create = conv2d_with, .parameters = {1, 2}, .second = "bias"},
              {.create = embedding_with, .parameters = {2, 2}, .second = "positions"},
              {.create = layer_norm_with, .parameters = {1, 2}, .second = "bias", .norm = true},
              {.create = group_norm_with, .parameters = {0, 2}, .norm = true},
              {.create = batch_norm_with, .parameters = {0, 2}, .norm = true},
              {.create = attention_with, .parameters = {8, 12}, .unknown = true},
              {.create = swiglu_with, .parameters = {3, 6}, .second = "down.weight"},
              {.create = head_with, .parameters = {1, 2}}};
enum { WISHES = 8, LAYERS = sizeof layers / sizeof layers[0] };

static void parameter_is_as_wished(const ek_parameter_info *info, const struct layer *layer,
                                   const struct wishes *wishes) {
  const bool bias = strstr(info->name, "bias") != NULL;
  const bool norm = layer->norm || strstr(info->name, "norm") != NULL;
  ck_assert_msg(info->frozen == wishes->frozen, "%s", info->name);
  ck_assert_msg(ek_tensor_exists(&info->gradient) == !wishes->frozen, "%s", info->name);
  ck_assert_msg(info->no_decay == (wishes->no_decay || bias || norm), "%s", info->name);
  if (layer->unknown) return;
  const bool is_second = layer->second != NULL && strcmp(info->name, layer->second) == 0;
  double *values = ck_got(&info->value);
  for (int64_t i = 0; i < ek_tensor_count(&info->value); i++) {
    const double want = is_second ? second[i] : bias ? 0 : first[i];
    ck_assert_msg(values[i] == want, "%s[%d] is %g", info->name, (int)i, values[i]);
  }
}

/* With each choice of a bias, frozen, and without decay. */
CK_LOOP(options_of_layers, WISHES * LAYERS) {
  const struct layer *layer = &layers[_i / WISHES];
  /* Copied: the layer does not read the array again. */
  ek_initializer start[] = {ek_initializer_values(first), ek_initializer_values(second)};
  const struct wishes wishes = {.bias = (_i & 1) != 0, .frozen = (_i & 2) != 0,
                                .no_decay = (_i & 4) != 0, .first = &start[0], .second = &start[1],
                                .of_bias = (_i & 1) != 0 ? &start[1] : NULL};
  CK_OPENED(ek_module *, module, layer->create(&module, &wishes));
  memset(start, 0xFF, sizeof start);
  struct bench bench = bench_open("cpu:1", module);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, module, NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(replica), layer->parameters[wishes.bias]);
  CK_EACH_PARAMETER(info, replica) {
    parameter_is_as_wished(&info, layer, &wishes);
  }
}

CK_TEST(without_gradients) {
  struct bench bench = bench_open("cpu:1", tiny_gpt());
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .gradients = false);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, &options));
  ck_assert_int_eq(ek_tensor_count(ek_replica_gradients(replica)), 0);
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, bench.device));
  ck_assert_uint_eq(usage.current[EK_MEMORY_PARAMETERS], usage.current_bytes);
  ck_assert_uint_eq(usage.current_bytes, ck_units(ek_replica_parameters(replica)));
}

CK_TEST(without_parameters) {
  CK_OPENED(ek_module *, module, ek_activation_create(&module, EK_ACTIVATION_RELU));
  struct bench bench = bench_open("cpu:1", module);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(replica), 0);
  ck_assert_int_eq(ek_tensor_count(ek_replica_parameters(replica)), 0);
  ck_assert_int_eq(ek_tensor_count(ek_replica_gradients(replica)), 0);
}

CK_TEST(charges) {
  struct bench bench = bench_open("plan:1", tiny_gpt());
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, bench.device, bench.module, NULL));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, bench.device));
  ck_assert_uint_eq(usage.current[EK_MEMORY_PARAMETERS], ck_units(ek_replica_parameters(replica)));
  ck_assert_uint_eq(usage.current[EK_MEMORY_GRADIENTS], ck_units(ek_replica_gradients(replica)));
  ck_assert_uint_eq(usage.current_bytes, 2 * usage.current[EK_MEMORY_PARAMETERS]);
}

/* No memory on the device, and none on the host: an error, and nothing left behind. */
CK_TEST(out_of_memory) {
  struct bench bench = bench_open("cpu:1", tiny_gpt());
  ek_replica *replica = NULL;
  for (uint64_t n = 1; n <= 2; n++) {
    ck_ok(ek_memory_fail_at(bench.device, n));
    ck_fails(ek_replica_open(&replica, bench.device, bench.module, NULL), EK_ERR_OUT_OF_MEMORY, "");
    ck_assert_ptr_null(replica);
    ck_no_memory_held(bench.group);
  }
  ck_ok(ek_memory_fail_at(bench.device, 0));
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_replica_open(&replica, bench.device, bench.module, NULL))) {
    ck_assert_ptr_null(replica);
    ck_no_memory_held(bench.group);
  }
  ck_keep(replica);
}

CK_TEST(bad_input) {
  struct bench bench = bench_open("cpu:1", tiny_gpt());
  ek_replica *replica = NULL;
  ek_parameter_info info;
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  ck_invalid(ek_replica_open(NULL, bench.device, bench.module, NULL), "");
  ck_invalid(ek_replica_open(&replica, NULL, bench.module, NULL), "");
  ck_invalid(ek_replica_open(&replica, bench.device, NULL, NULL), "");
  ck_bad(options, size, 0, ek_replica_open(&replica, bench.device, bench.module, &options), "");
  for (int i = 0; i < 3; i++) {
    options.type = (const ek_type[]){EK_I32, EK_BF16, (ek_type)77}[i];
    ck_assert_int_ne(ek_replica_open(&replica, bench.device, bench.module, &options), EK_OK);
  }
  ck_assert_ptr_null(replica);

  ck_ok(ek_replica_open(&replica, bench.device, bench.module, NULL));
  ck_invalid(ek_replica_parameter(NULL, replica, 0), "");
  ck_invalid(ek_replica_parameter(&info, NULL, 0), "");
  ck_invalid(ek_replica_find(NULL, replica, "norm.bias"), "");
  ck_invalid(ek_replica_find(&info, NULL, "norm.bias"), "");
  ck_invalid(ek_replica_find(&info, replica, NULL), "");
  ek_replica_free(replica);

  ck_assert_ptr_null(ek_replica_device(NULL));
  ck_assert_ptr_null(ek_replica_module(NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(NULL), 0);
  ek_replica_free(NULL);
}

CK_SUITE("replica")
