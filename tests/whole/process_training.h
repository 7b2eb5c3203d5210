/*
 * process_training.h - the parts of check_processes.c that train, each in a process of its own.
 */
#ifndef PROCESS_TRAINING_H
#define PROCESS_TRAINING_H

#include "ck_processes.h"
#include "ck_training.h"

enum { RANKS = 4 };

/* Runs of training, by the names of their parts. */
struct training {
  const char *part, *workload;
  ek_mode mode;
  ek_precision precision;
  const ek_loss_scale *loss_scale;
  bool gradient_in_forward;
  ek_shard_over shard_over;
  size_t reproducible;
  bool muon;
};
/* Those with the bits of one process; with shares within each process, which make other sums if it
 * has several devices; and those that are the same whatever the processes and devices. */
enum { TRAININGS = 10, INSIDE = 3, ANY = 6 };
extern const struct training trainings[TRAININGS + INSIDE + ANY];

/* Where save_or_load() finds the name of its folder. */
#define FOLDER_VARIABLE "CK_PROCESSES_FOLDER"

/* The one of `trainings` that is the part; peaks of the devices and what `plan` counts for them;
 * rows of another process's grains; numbers of devices that differ; modes for one process; what is
 * read of a state; two steps before or after a file; and a trainer's steps. */
void train(struct ck_outcome *outcome, const struct ck_process *process);
void count_memory(struct ck_outcome *outcome, const struct ck_process *process);
void wrong_rows(struct ck_outcome *outcome, const struct ck_process *process);
void differ_in_devices(struct ck_outcome *outcome, const struct ck_process *process);
void refusals(struct ck_outcome *outcome, const struct ck_process *process);
void read_states(struct ck_outcome *outcome, const struct ck_process *process);
void save_or_load(struct ck_outcome *outcome, const struct ck_process *process);
void use_trainer(struct ck_outcome *outcome, const struct ck_process *process);

/* 52 bits, for a double. */
double hash_of_tensor(const ek_tensor *tensor);

#endif /* PROCESS_TRAINING_H */
