/*
 * evenkeel.h - trains neural networks over the devices of one machine with an even load.
 *
 * Includes everything. To read it as a tutorial, take the headers in this order:
 *
 *     status.h     errors                        device.h    devices, groups, workers, streams
 *     memory.h     the ledger                    tensor.h    shapes over memory
 *     trainer.h    the training loop             state.h     all that a run has become, by name
 *     data_parallel_model.h, data_parallel_criterion.h, data_parallel_optimizer.h
 *                  what it is made of, for more than it does
 *     gpt.h, mlp.h, layers.h                     stock models and layers
 *     recompute.h                                less memory for more work
 *     advise.h                                   which settings fit the devices
 *     cross_entropy.h, mean_squared_error.h, weighted_sum.h         losses
 *     with_criterion.h                                             a model and its loss in one
 *     sgd.h, adamw.h, schedule.h, loss_scale.h   optimizers
 *     module.h, pass.h, chain.h, replica.h, criterion.h, optimizer.h   to write your own
 *     module_check.h                             whether a module of yours does what it must; link
 *                                                evenkeel_check, too
 *     op.h         operations for your own layers
 *     shards.h, scatter.h, gather.h, replicate.h, parallel_apply.h, reduce.h, communicator.h
 *                  the parts that data parallelism is made of
 *     checkpoint.h                               the state of a run in files, to go on from
 *     weights.h                                  a model's weights for other programs, or from them
 *     safetensors.h                              tensors in files that other programs read, too
 *     metrics.h                                  figures of a long run, for Prometheus and as lines
 *     memory_snapshot.h                          who holds memory, by module, for PyTorch's viewer
 *     trace.h                                    a timeline of devices and modules, for Perfetto
 *     fault.h, host_memory.h                     failures on purpose, for tests of a program
 *     version.h    of the headers and of the library that runs
 *
 * What is refused of threads, fork(), order and ownership, and what cannot be seen: docs/misuse.md.
 */
#ifndef EVENKEEL_EVENKEEL_H
#define EVENKEEL_EVENKEEL_H

#include <evenkeel/adamw.h>
#include <evenkeel/advise.h>
#include <evenkeel/parallel_apply.h>
#include <evenkeel/chain.h>
#include <evenkeel/checkpoint.h>
#include <evenkeel/communicator.h>
#include <evenkeel/cross_entropy.h>
#include <evenkeel/data_parallel_criterion.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/data_parallel_optimizer.h>
#include <evenkeel/device.h>
#include <evenkeel/fault.h>
#include <evenkeel/gather.h>
#include <evenkeel/gpt.h>
#include <evenkeel/host_memory.h>
#include <evenkeel/layers.h>
#include <evenkeel/linear_cross_entropy.h>
#include <evenkeel/log.h>
#include <evenkeel/loss_scale.h>
#include <evenkeel/mean_squared_error.h>
#include <evenkeel/memory.h>
#include <evenkeel/memory_snapshot.h>
#include <evenkeel/metrics.h>
#include <evenkeel/mlp.h>
#include <evenkeel/module_check.h>
#include <evenkeel/op.h>
#include <evenkeel/pass.h>
#include <evenkeel/random.h>
#include <evenkeel/recompute.h>
#include <evenkeel/reduce.h>
#include <evenkeel/replicate.h>
#include <evenkeel/safetensors.h>
#include <evenkeel/schedule.h>
#include <evenkeel/sgd.h>
#include <evenkeel/state.h>
#include <evenkeel/status.h>
#include <evenkeel/tensor.h>
#include <evenkeel/trace.h>
#include <evenkeel/trainer.h>
#include <evenkeel/version.h>
#include <evenkeel/weighted_sum.h>
#include <evenkeel/weights.h>
#include <evenkeel/with_criterion.h>

#endif /* EVENKEEL_EVENKEEL_H */
