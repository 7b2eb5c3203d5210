/*
 * evenkeel.h - trains neural networks over the devices of one machine with an even load.
 *
 * Includes everything except mpi.h. A whole program, in which a small network learns to multiply on
 * four devices:
 *
 *     #include <evenkeel/evenkeel.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *       float x[64][2], y[64];
 *       for (int i = 0; i < 64; i++) {
 *         x[i][0] = (float)(i % 8) / 4 - 1;
 *         x[i][1] = (float)(i / 8) / 4 - 1;
 *         y[i] = x[i][0] * x[i][1];
 *       }
 *       ek_tensor inputs, targets;
 *       ek_module *mlp = NULL;
 *       ek_criterion *loss = NULL;
 *       ek_optimizer *adamw = NULL;
 *       ek_trainer *trainer = NULL;
 *       ek_status status;
 *       const int64_t x_shape[] = {64, 2}, y_shape[] = {64, 1}, sizes[] = {2, 16, 1};
 *       ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
 *       options.learning_rate = 0.05;
 *       EK_TRY_GOTO(status, ek_tensor_host(&inputs, x, EK_F32, 2, x_shape), cleanup);
 *       EK_TRY_GOTO(status, ek_tensor_host(&targets, y, EK_F32, 2, y_shape),
 *                   cleanup);
 *       EK_TRY_GOTO(status, ek_mlp_create(&mlp, sizes, 3, EK_ACTIVATION_GELU),
 *                   cleanup);
 *       EK_TRY_GOTO(status, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN),
 *                   cleanup);
 *       EK_TRY_GOTO(status, ek_adamw_create(&adamw, &options), cleanup);
 *       EK_TRY_GOTO(status, ek_trainer_open(&trainer, "cpu:4", mlp, loss, adamw,
 *                                           NULL), cleanup);
 *       for (int i = 1; i <= 40; i++) {
 *         ek_step_result result;
 *         EK_TRY_GOTO(status, ek_trainer_step(&result, trainer, &inputs, 1,
 *                                             &targets, 1), cleanup);
 *         if (i % 10 == 0) printf("step %d: loss %.6f\n", i, result.loss);
 *       }
 *     cleanup:
 *       if (status != EK_OK) fprintf(stderr, "%s\n", ek_error_message());
 *       ek_trainer_free(trainer);
 *       ek_optimizer_free(adamw);
 *       ek_criterion_free(loss);
 *       ek_module_free(mlp);
 *       return status != EK_OK;
 *     }
 *
 * To read the headers as a tutorial, take them in this order. For such a program:
 *
 *     status.h                   errors, options, the order of arguments
 *     device.h                   devices and groups, from a string; environment variables
 *     world.h                    processes that train together
 *     mpi.h                      a world from an MPI communicator; needs <mpi.h>
 *     tensor.h                   a shape over memory of the host or of a device
 *     trainer.h                  a model, its loss and its optimizer over all devices
 *
 * Stock models and layers:
 *
 *     gpt.h                      a decoder of GPT-2's shape
 *     llama.h                    a decoder of Llama's shape
 *     resnet.h                   ResNet
 *     fcn.h                      segmentation of pictures on a ResNet
 *     mlp.h                      linear layers with an activation between them
 *     layers.h                   includes the stock layers that follow
 *     linear.h                   y = x W^T + b
 *     conv2d.h                   convolution of pictures
 *     pool2d.h                   the largest or the mean of windows of a picture
 *     upsample.h                 a picture with more pixels
 *     activation.h               GELU and others as modules
 *     activation_list.h          their list and formulas
 *     layer_norm.h               layer normalisation, RMSNorm
 *     batch_norm.h               batch normalisation, over a device or all of them
 *     group_norm.h               normalisation of groups of an image's channels
 *     attention.h                causal multi-head self-attention
 *     swiglu.h                   a feed-forward layer with a gate
 *     embedding.h                rows of a learned table by index
 *     dropout.h                  random zeros in training
 *     residual.h                 y = x + inner(x)
 *     sequential.h               modules one after the other
 *
 * Losses:
 *
 *     cross_entropy.h            of logits against class indices
 *     mean_squared_error.h       of numbers
 *     elementwise_loss.h         L1, Huber, binary cross-entropy
 *     weighted_sum.h             several losses for several outputs
 *     linear_cross_entropy.h     the last linear layer and its cross-entropy in one
 *     with_criterion.h           a model and its loss as one module
 *
 * Optimizers:
 *
 *     sgd.h                      gradient descent with momentum
 *     adamw.h                    AdamW and Adam
 *     muon.h                     Muon for matrices, beside another rule for the rest
 *     averaged.h                 any rule, with a running average of the weights
 *     schedule.h                 the learning rate as a function of the step
 *     loss_scale.h               for gradients in f16
 *
 * Data:
 *
 *     source.h                   samples by number, in an order that needs no memory
 *     tokens.h                   files of tokens
 *     image_source.h             labelled pictures: MNIST, CIFAR, arrays
 *     data_loader.h              batches that are read ahead
 *
 * A long run:
 *
 *     checkpoint.h               the state of a run in files, to go on from
 *     weights.h                  a model's weights, to exchange with other programs
 *     model_folder.h             a model in a folder of the package transformers, in and out
 *     weight_names.h             the names that other programs give the parameters
 *     safetensors.h              tensors in files that other programs read as well
 *     state.h                    all of the state of a run, by name
 *     trainer_run.h              the loop of a run: validation, saved states, going on
 *     metrics.h                  figures for Prometheus, and a line of JSON for each step
 *     log.h                      the library's log
 *
 * Memory and time:
 *
 *     memory.h                   the ledger: what each device holds, by category, and its peak
 *     memory_snapshot.h          what holds it, by module, for PyTorch's viewer
 *     recompute.h                less memory for more work
 *     advise.h                   which settings fit the devices
 *     trace.h                    a timeline of devices and modules, for Perfetto
 *
 * What the trainer is made of, for programs that need more than it does:
 *
 *     data_parallel_model.h      a module over all devices, in one of six modes
 *     data_parallel_criterion.h  its loss, where the outputs are
 *     data_parallel_optimizer.h  its updates
 *     shards.h                   one tensor as a part on each device
 *     scatter.h                  cuts a tensor into shards
 *     gather.h                   puts shards together
 *     replicate.h                makes replicas equal to the first
 *     parallel_apply.h           one forward on every device
 *     reduce.h                   sums gradients while backward runs
 *     communicator.h             collectives between devices
 *     dlpack.h                   tensors of PyTorch, NumPy and others, and tensors for them
 *
 * Your own modules, losses and optimizers:
 *
 *     module.h                   what a module is, and what it declares
 *     pass.h                     one forward and its backward on one device
 *     chain.h                    runs children one after the other, fused where that saves work
 *     criterion.h                what a loss is
 *     optimizer.h                what an update rule is
 *     replica.h                  a device's parameters and gradients
 *     random.h                   random numbers that depend on place, not on time
 *     module_check.h             checks a module of your own (link evenkeel_check too)
 *
 * Operations on a device, for their functions:
 *
 *     op.h                       includes all that follow
 *     products.h                 matrix products
 *     elementwise.h              one element at a time, and sums of columns
 *     rows.h                     sums, means and softmax of rows
 *     normalize.h                layer normalisation
 *     channel_norm.h             normalisation by channels
 *     attend.h                   self-attention
 *     rotary.h                   rotary position embedding
 *     convolve.h                 convolution of pictures
 *     pool.h                     pooling of pictures, and pictures of another size
 *     lookup.h                   rows of a table by index
 *     losses.h                   losses and their gradients
 *     convert.h                  from one type to another
 *     updates.h                  the optimizers' updates
 *
 * For tests of a program, and for its build:
 *
 *     fault.h                    makes work on a device fail
 *     host_memory.h              makes requests for host memory fail
 *     version.h                  of the headers and of the library that runs
 *     export.h                   attributes of declarations
 *
 * docs/misuse.md describes which wrong uses of threads, fork(), order and ownership are refused,
 * and which cannot be detected.
 */
#ifndef EVENKEEL_EVENKEEL_H
#define EVENKEEL_EVENKEEL_H

#include <evenkeel/adamw.h>
#include <evenkeel/advise.h>
#include <evenkeel/averaged.h>
#include <evenkeel/chain.h>
#include <evenkeel/checkpoint.h>
#include <evenkeel/communicator.h>
#include <evenkeel/cross_entropy.h>
#include <evenkeel/data_loader.h>
#include <evenkeel/data_parallel_criterion.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/data_parallel_optimizer.h>
#include <evenkeel/device.h>
#include <evenkeel/dlpack.h>
#include <evenkeel/elementwise_loss.h>
#include <evenkeel/fault.h>
#include <evenkeel/fcn.h>
#include <evenkeel/gather.h>
#include <evenkeel/gpt.h>
#include <evenkeel/host_memory.h>
#include <evenkeel/image_source.h>
#include <evenkeel/layers.h>
#include <evenkeel/linear_cross_entropy.h>
#include <evenkeel/llama.h>
#include <evenkeel/log.h>
#include <evenkeel/loss_scale.h>
#include <evenkeel/mean_squared_error.h>
#include <evenkeel/memory.h>
#include <evenkeel/memory_snapshot.h>
#include <evenkeel/metrics.h>
#include <evenkeel/mlp.h>
#include <evenkeel/model_folder.h>
#include <evenkeel/module_check.h>
#include <evenkeel/muon.h>
#include <evenkeel/op.h>
#include <evenkeel/parallel_apply.h>
#include <evenkeel/pass.h>
#include <evenkeel/random.h>
#include <evenkeel/recompute.h>
#include <evenkeel/reduce.h>
#include <evenkeel/replicate.h>
#include <evenkeel/resnet.h>
#include <evenkeel/safetensors.h>
#include <evenkeel/schedule.h>
#include <evenkeel/sgd.h>
#include <evenkeel/source.h>
#include <evenkeel/state.h>
#include <evenkeel/status.h>
#include <evenkeel/tensor.h>
#include <evenkeel/tokens.h>
#include <evenkeel/trace.h>
#include <evenkeel/trainer.h>
#include <evenkeel/trainer_run.h>
#include <evenkeel/version.h>
#include <evenkeel/weighted_sum.h>
#include <evenkeel/weights.h>
#include <evenkeel/with_criterion.h>
#include <evenkeel/world.h>

#endif /* EVENKEEL_EVENKEEL_H */
