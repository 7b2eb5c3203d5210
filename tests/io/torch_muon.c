/*
 * torch_muon.c TYPE ROWS COLUMNS STEPS FACTOR NESTEROV FILE: for torch_muon.py, which compares Muon
 * with torch.optim.Muon. FILE has a matrix and then a gradient for each step; after it the program
 * writes the matrix and the momentum that the steps leave. TYPE is f32 or f64, of the numbers and
 * of the arithmetic; FACTOR the number of an ek_muon_factor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { P, G, M, W, TENSORS };

struct run {
  ek_group *group;
  ek_optimizer *adamw, *rule;
  ek_tensor tensors[TENSORS];
  ek_optimizer_parameter matrix;
};

static ek_status open_run(struct run *run, ek_type type, const char **arguments) {
  ek_muon_options options = EK_MUON_OPTIONS_INIT;
  options.learning_rate = 0.02;
  options.factor = (ek_muon_factor)atoi(arguments[3]);
  options.nesterov = atoi(arguments[4]) != 0;
  run->matrix.name = "matrix";
  run->matrix.rank = 2;
  run->matrix.shape[0] = atol(arguments[0]);
  run->matrix.shape[1] = atol(arguments[1]);
  EK_TRY(ek_group_open(&run->group, "cpu:1", NULL));
  EK_TRY(ek_adamw_create(&run->adamw, NULL));
  EK_TRY(ek_muon_create(&run->rule, run->adamw, &options));
  const int64_t elements = ek_optimizer_table(run->rule)->workspace(run->rule, &run->matrix);
  ek_device *device = ek_group_device(run->group, 0);
  for (int i = 0; i < TENSORS; i++) {
    EK_TRY(ek_tensor_create(&run->tensors[i], device, EK_MEMORY_WORKSPACE, type, i == W ? 1 : 2,
                            i == W ? &elements : run->matrix.shape));
  }
  return EK_OK;
}

/* Between the file and a tensor, in host memory of `bytes`. */
static ek_status move(ek_tensor *tensor, void *memory, FILE *file, bool in) {
  ek_tensor host;
  const size_t bytes = (size_t)ek_tensor_bytes(tensor);
  EK_TRY(ek_tensor_host(&host, memory, tensor->type, tensor->rank, tensor->shape));
  if (!in) EK_TRY(ek_tensor_copy(&host, tensor));
  if ((in ? fread(memory, 1, bytes, file) : fwrite(memory, 1, bytes, file)) != bytes) {
    return ek_error_set(EK_ERR_IO, "the file is too short, or cannot be written");
  }
  return in ? ek_tensor_copy(tensor, &host) : EK_OK;
}

static ek_status take_steps(struct run *run, int64_t steps, void *memory, FILE *file) {
  ek_stream *stream = ek_device_stream(ek_group_device(run->group, 0), EK_STREAM_COMPUTE);
  EK_TRY(move(&run->tensors[P], memory, file, true));
  for (int64_t step = 1; step <= steps; step++) {
    EK_TRY(move(&run->tensors[G], memory, file, true));
    const ek_update update = {.parameters = &run->tensors[P], .gradients = &run->tensors[G],
                              .states = &run->tensors[M], .step = step,
                              .learning_rate = ek_optimizer_learning_rate(run->rule),
                              .whole = &run->matrix, .workspace = &run->tensors[W]};
    EK_TRY(ek_optimizer_table(run->rule)->update(run->rule, stream, &update));
  }
  if (fseek(file, 0, SEEK_END) != 0) return ek_error_set(EK_ERR_IO, "the file has no end");
  EK_TRY(move(&run->tensors[P], memory, file, false));
  return move(&run->tensors[M], memory, file, false);
}

int main(int argc, char **argv) {
  struct run run = {0};
  if (argc != 8) return 2;
  const ek_type type = strcmp(argv[1], "f64") == 0 ? EK_F64 : EK_F32;
  FILE *file = fopen(argv[7], "r+b");
  ek_status status = open_run(&run, type, (const char **)(argv + 2));
  void *memory = status == EK_OK ? malloc((size_t)ek_tensor_bytes(&run.tensors[P])) : NULL;
  if (file != NULL && memory != NULL) status = take_steps(&run, atol(argv[4]), memory, file);
  if (status != EK_OK) fprintf(stderr, "torch_muon: %s\n", ek_error_message());
  free(memory);
  for (int i = 0; i < TENSORS; i++) ek_tensor_free(&run.tensors[i]);
  ek_optimizer_free(run.rule);
  ek_optimizer_free(run.adamw);
  ek_group_free(run.group);
  return file == NULL || memory == NULL || fclose(file) != 0 || status != EK_OK;
}
