/*
 * layers.h - includes the stock layers, one header each.
 *
 * Every ek_X_create() makes a module with one reference, owned by the caller, and fails with
 * EK_ERR_INVALID_ARGUMENT for sizes that make no sense and EK_ERR_OUT_OF_MEMORY for the host. A
 * module that holds others keeps references of its own: the caller still frees what it created.
 */
#ifndef EVENKEEL_LAYERS_H
#define EVENKEEL_LAYERS_H

#include <evenkeel/activation.h>
#include <evenkeel/attention.h>
#include <evenkeel/batch_norm.h>
#include <evenkeel/conv2d.h>
#include <evenkeel/dropout.h>
#include <evenkeel/embedding.h>
#include <evenkeel/group_norm.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/pool2d.h>
#include <evenkeel/residual.h>
#include <evenkeel/sequential.h>
#include <evenkeel/swiglu.h>
#include <evenkeel/upsample.h>

#endif /* EVENKEEL_LAYERS_H */
