/*
 * torch_muon.c TYPE ROWS COLUMNS STEPS FACTOR NESTEROV FILE: for torch_muon.py, which compares Muon
 * with torch.optim.Muon. FILE has a matrix and then a gradient for each step; after it the program
 * writes the matrix and the momentum that the steps leave. TYPE is f32 or f64, of the numbers and
 * of the arithmetic; FACTOR the number of an ek_muon_factor.
 */
#include <string.h>

#include "program.h"

enum { P, G, M, W, TENSORS };

static ek_tensor tensors[TENSORS];

/* Between the file and a tensor. */
static void move_tensor(ek_tensor *tensor, FILE *file, bool in) {
  ek_tensor host;
  const size_t bytes = (size_t)ek_tensor_bytes(tensor);
  void *memory = malloc(bytes);
  OK(ek_tensor_host(&host, memory, tensor->type, tensor->rank, tensor->shape));
  if (!in) OK(ek_tensor_copy(&host, tensor));
  move(file, in, memory, bytes);
  if (in) OK(ek_tensor_copy(tensor, &host));
  free(memory);
}

static void take_steps(const ek_optimizer *rule, const ek_optimizer_parameter *matrix,
                       int64_t steps, FILE *file) {
  ek_stream *stream = ek_device_stream(tensors[P].device, EK_STREAM_COMPUTE);
  move_tensor(&tensors[P], file, true);
  for (int64_t step = 1; step <= steps; step++) {
    move_tensor(&tensors[G], file, true);
    const ek_update update = {.parameters = &tensors[P], .gradients = &tensors[G],
                              .states = &tensors[M], .step = step,
                              .learning_rate = ek_optimizer_learning_rate(rule),
                              .whole = matrix, .workspace = &tensors[W]};
    OK(ek_optimizer_table(rule)->update(rule, stream, &update));
  }
  REQUIRE(fseek(file, 0, SEEK_END) == 0);
  move_tensor(&tensors[P], file, false);
  move_tensor(&tensors[M], file, false);
}

int main(int argc, char **argv) {
  ek_group *group = NULL;
  ek_optimizer *adamw = NULL, *rule = NULL;
  ek_muon_options options = EK_MUON_OPTIONS_INIT;
  if (argc != 8) return 2;
  const ek_type type = strcmp(argv[1], "f64") == 0 ? EK_F64 : EK_F32;
  const ek_optimizer_parameter matrix = {
      .name = "matrix", .rank = 2, .shape = {atol(argv[2]), atol(argv[3])}};
  options.learning_rate = 0.02;
  options.factor = (ek_muon_factor)atoi(argv[5]);
  options.nesterov = atoi(argv[6]) != 0;
  OK(ek_group_open(&group, "cpu:1", NULL));
  OK(ek_adamw_create(&adamw, NULL));
  OK(ek_muon_create(&rule, adamw, &options));
  const int64_t elements = ek_optimizer_table(rule)->workspace(rule, &matrix);
  for (int i = 0; i < TENSORS; i++) {
    OK(ek_tensor_create(&tensors[i], ek_group_device(group, 0), EK_MEMORY_WORKSPACE, type,
                        i == W ? 1 : 2, i == W ? &elements : matrix.shape));
  }
  FILE *file = fopen(argv[7], "r+b");
  REQUIRE(file != NULL);
  take_steps(rule, &matrix, atol(argv[4]), file);
  REQUIRE(fclose(file) == 0);
  for (int i = 0; i < TENSORS; i++) ek_tensor_free(&tensors[i]);
  ek_optimizer_free(rule);
  ek_optimizer_free(adamw);
  ek_group_free(group);
  return 0;
}
