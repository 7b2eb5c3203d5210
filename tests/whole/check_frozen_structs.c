/*
 * check_frozen_structs.c - public structs that state no size: they are frozen (status.h).
 *
 * An older program reads them as they were when it was compiled, so sizes and offsets stay as they
 * are in this table, which tests/install/check_layout.sh compares with the headers. They are those
 * of 64-bit systems on which double and int64_t have an alignment of 8. Until the first release a
 * struct may change, and its line with it; afterwards what is new gets a struct of its own.
 */
#include "ek_check.h"

static void same(const char *name, const char *what, size_t got, size_t want) {
  ck_assert_msg(got == want, "%s: %s is %zu, frozen at %zu", name, what, got, want);
}

#define S(type, bytes)                                                                             \
  const char *name = #type;                                                                        \
  typedef type it;                                                                                 \
  same(name, "its size", sizeof(it), bytes);
#define M(member, at) same(name, "the offset of " #member, offsetof(it, member), at);

CK_TEST(sizes_and_offsets_are_frozen) {
  if (sizeof(void *) != 8) return;
  /* clang-format off */
  { S(ek_settings, 56) M(mode, 0) M(recompute, 8) M(fused_loss, 32) M(micro_batches, 40)
    M(precision, 48) M(shard_over, 52) }
  { S(ek_advice, 112) M(settings, 0) M(fits, 56) M(peak_bytes, 64) M(fullest, 72)
    M(missing_bytes, 80) M(seconds, 88) M(sent_bytes, 96) M(exchange_seconds, 104) }
  { S(ek_checkpoint_extra, 104) M(name, 0) M(value, 8) }
  { S(ek_checkpoint_info, 4200) M(path, 0) M(step, 4096) M(position, 4104) M(has_schedule, 4112)
    M(schedule, 4120) }
  { S(ek_step_result, 56) M(loss, 0) M(weight, 8) M(gradient_norm, 16) M(learning_rate, 24)
    M(step, 32) M(empty, 40) M(finite, 41) M(skipped, 42) M(loss_scale, 48) }
  { S(ek_device_description, 336) M(name, 0) M(text, 64) M(available, 320) M(cores, 324)
    M(memory_bytes, 328) }
  { S(ek_device_resources, 24) M(stream, 0) M(memory, 8) M(bytes, 16) }
  { S(ek_dlpack, 80) M(major, 0) M(minor, 4) M(manager, 8) M(deleter, 16) M(flags, 24)
    M(tensor, 32) }
  { S(ek_loss_scale, 40) M(kind, 0) M(scale, 8) M(growth, 16) M(backoff, 24) M(interval, 32) }
  { S(ek_loss_scale_state, 16) M(scale, 0) M(good_steps, 8) }
  { S(ek_cross_entropy_terms, 32) M(ignore_index, 0) M(label_smoothing, 8) M(class_weights, 16)
    M(classes, 24) }
  { S(ek_memory_usage, 216) M(capacity_bytes, 0) M(current_bytes, 8) M(peak_bytes, 16)
    M(unused_at_peak, 24) M(current, 32) M(at_peak, 112) M(allocations, 192) M(fixed_bytes, 200)
    M(outside_bytes, 208) }
  { S(ek_memory_outside, 40) M(opening_bytes, 0) M(now_bytes, 8) M(reserve_bytes, 16)
    M(free_bytes, 24) M(total_bytes, 32) }
  { S(ek_memory_event, 48) M(nanoseconds, 0) M(delta_bytes, 8) M(current_bytes, 16)
    M(height_bytes, 24) M(category, 32) M(before, 36) M(block_bytes, 40) }
  { S(ek_memory_holder, 176) M(name, 0) M(bytes, 160) M(blocks, 168) }
  { S(ek_formula, 40) M(kind, 0) M(activation, 4) M(weight, 8) M(bias, 16) M(has_bias, 24)
    M(epsilon, 32) }
  { S(ek_fact, 40) M(key, 0) M(kind, 8) M(number, 16) M(words, 24) M(only_written, 32) }
  { S(ek_promise, 24) M(totals, 0) M(overwrite_inputs, 8) M(gradient_now, 16) }
  { S(ek_initializer, 32) M(kind, 0) M(a, 8) M(b, 16) M(values, 24) }
  { S(ek_parameter_pattern, 32) M(pattern, 0) M(frozen, 8) M(no_decay, 9) M(elementwise, 10)
    M(rate_scale, 16) M(weight_decay, 24) }
  { S(ek_check_input, 104) M(type, 0) M(rank, 4) M(shape, 8) M(low, 72) M(high, 80) M(gap, 88)
    M(broadcast, 96) }
  { S(ek_add_layer_norm_args, 72) M(y, 0) M(sum, 8) M(mean, 16) M(rstd, 24) M(x, 32)
    M(residual, 40) M(weight, 48) M(bias, 56) M(epsilon, 64) }
  { S(ek_layer_norm_backward_args, 88) M(dx, 0) M(dweight, 8) M(dbias, 16) M(dy, 24) M(x, 32)
    M(mean, 40) M(rstd, 48) M(weight, 56) M(residual, 64) M(weight_beta, 72) M(bias_beta, 80) }
  { S(ek_channel_averages_args, 88) M(average_g, 0) M(average_gn, 8) M(dweight, 16) M(dbias, 24)
    M(sums, 32) M(rows, 40) M(weight, 48) M(host_rows, 56) M(groups, 64) M(weight_beta, 72)
    M(bias_beta, 80) }
  { S(ek_channel_norm_backward_args, 64) M(dx, 0) M(dy, 8) M(x, 16) M(mean, 24) M(rstd, 32)
    M(weight, 40) M(average_g, 48) M(average_gn, 56) }
  { S(ek_convolve_backward_args, 80) M(dx, 0) M(dweight, 8) M(dbias, 16) M(workspace, 24)
    M(dy, 32) M(x, 40) M(weight, 48) M(weight_beta, 56) M(bias_beta, 64) M(options, 72) }
  { S(ek_cross_entropy_gradient_args, 64) M(gradient, 0) M(losses, 8) M(normalizer, 16)
    M(totals, 24) M(logits, 32) M(targets, 40) M(scale, 48) M(terms, 56) }
  { S(ek_update, 104) M(parameters, 0) M(gradients, 8) M(states, 16) M(step, 24) M(no_decay, 32)
    M(learning_rate, 40) M(scale, 48) M(weight_decay, 80) M(whole, 88) M(workspace, 96) }
  { S(ek_optimizer_parameter, 88) M(name, 0) M(rank, 8) M(shape, 16) M(no_decay, 80)
    M(elementwise, 81) }
  { S(ek_random_key, 16) M(seed, 0) M(step, 8) M(stream, 12) }
  { S(ek_recompute, 24) M(kind, 0) M(every, 8) M(bytes, 16) }
  { S(ek_parameter_info, 240) M(name, 0) M(value, 8) M(gradient, 104) M(offset, 200)
    M(buffer, 208) M(no_decay, 209) M(frozen, 210) M(rate_scale, 216) M(weight_decay, 224)
    M(elementwise, 232) }
  { S(ek_parameter_totals, 24) M(parameters, 0) M(trained, 8) M(buffers, 16) }
  { S(ek_safetensors_entry, 104) M(name, 0) M(like, 8) }
  { S(ek_safetensors_pair, 16) M(key, 0) M(value, 8) }
  { S(ek_schedule, 80) M(kind, 0) M(peak, 8) M(floor, 16) M(first, 24) M(factor, 32)
    M(warmup, 40) M(total, 48) M(decay, 56)
    M(function, 64) M(context, 72) }
  { S(ek_shards, 80) M(group, 0) M(count, 8) M(parts, 16) M(offsets, 24) M(samples, 32)
    M(broadcast, 40) M(private_members, 48) }
  { S(ek_state_info, 744) M(name, 0) M(kind, 640) M(placement, 644) M(like, 648) }
  { S(ek_run_event, 72) M(result, 0) M(step, 8) M(steps, 16) M(position, 24) M(rows, 32)
    M(seconds, 40) M(rows_per_second, 48) M(validation, 56) M(best, 64) }
  { S(ek_run_result, 80) M(end, 0) M(first, 8) M(step, 16) M(position, 24) M(loss, 32)
    M(validation, 40) M(best, 48) M(best_step, 56) M(seconds, 64) M(waited, 72) }
  { S(ek_element_loss, 24) M(kind, 0) M(width, 8) M(steepness, 16) }
  { S(ek_source_tensor, 72) M(type, 0) M(rank, 4) M(shape, 8) }
  { S(ek_source_request, 32) M(samples, 0) M(count, 8) M(key, 16) }
  { S(ek_batch, 56) M(inputs, 0) M(targets, 8) M(input_count, 16) M(target_count, 24)
    M(position, 32) M(rows, 40) M(next, 48) }
  { S(ek_tensor, 96) M(data, 0) M(memory, 8) M(device, 16) M(type, 24) M(rank, 28) M(shape, 32) }
  { S(ek_input_scaling, 72) M(channels, 0) M(scale, 8) M(offset, 40) }
  { S(ek_trace_summary, 32) M(spans, 0) M(counters, 8) M(spans_dropped, 16)
    M(counters_dropped, 24) }
  { S(ek_trace_span, 8) M(span, 0) }
  { S(ek_update_scale, 32) M(totals, 0) M(square_norm, 8) M(clip_norm, 16) M(copy, 24) }
  { S(ek_sgd_terms, 40) M(learning_rate, 0) M(momentum, 8) M(dampening, 16) M(weight_decay, 24)
    M(nesterov, 32) M(first, 33) }
  { S(ek_adamw_terms, 56) M(learning_rate, 0) M(beta1, 8) M(beta2, 16) M(epsilon, 24)
    M(weight_decay, 32) M(decoupled, 40) M(step, 48) }
  { S(ek_weight_name, 32) M(file, 0) M(model, 8) M(transposed, 16) M(bare, 17) M(share, 24) }
  { S(ek_weight_names, 24) M(rows, 0) M(count, 8) M(prefix, 16) }
  /* clang-format on */
}

CK_SUITE("frozen_structs")
