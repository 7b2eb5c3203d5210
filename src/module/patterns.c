/*
 * patterns.c - options of parameters by patterns of their names, applied before a model opens.
 *
 * Every name of a parameter, those tied to it included, is compared with every pattern, and the
 * last pattern that matches any of them applies; the order of names plays no part. Declarations
 * make two groups, without decay and with it. Each other combination of rate and decay that
 * patterns ask for is one more group, in the order of the parameters. Frozen parameters are in no
 * group.
 */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "module/layout.h"

static const char memory_of[] = "patterns of parameters";

/* Whether a whole name matches: after a `*` the shortest text that lets the rest match is tried
 * first, and only the last `*` is ever tried again. */
static bool matches(const char *pattern, const char *name) {
  const char *star = NULL, *tried = NULL;
  while (*name != '\0') {
    if (*pattern == '*') {
      star = pattern++;
      tried = name;
    } else if (*pattern == '?' || *pattern == *name) {
      pattern++;
      name++;
    } else if (star != NULL) {
      pattern = star + 1;
      name = ++tried;
    } else {
      return false;
    }
  }
  while (*pattern == '*') pattern++;
  return *pattern == '\0';
}

/* How many characters of the name must be inserted, removed or changed until it matches (the
 * distance of Levenshtein 1966, with wildcards), one row for each character of the pattern. */
static size_t distance(const char *pattern, const char *name) {
  size_t row[EK__PATH_SIZE];
  const size_t length = strlen(name);
  for (size_t j = 0; j <= length; j++) row[j] = j;
  for (; *pattern != '\0'; pattern++) {
    const bool star = *pattern == '*';
    size_t diagonal = row[0];
    if (!star) row[0]++;
    for (size_t j = 1; j <= length; j++) {
      const size_t above = row[j], left = row[j - 1];
      const bool equal = *pattern == '?' || *pattern == name[j - 1];
      size_t least = diagonal + (star || equal ? 0 : 1);
      if (above + !star < least) least = above + !star;
      if (left + !star < least) least = left + !star;
      row[j] = least;
      diagonal = above;
    }
  }
  return row[length];
}

static bool is_parameter(const struct ek__layout *layout, const struct ek__name *name) {
  return name->name != NULL && name->value != EK__NO_PARAMETER &&
         !layout->parameters[name->value].buffer;
}

static const char *nearest_name(const struct ek__layout *layout, const char *wanted,
                                const char *within, bool modules) {
  const char *nearest = NULL;
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < layout->names.capacity; i++) {
    const struct ek__name *name = &layout->names.places[i];
    const bool module = modules && name->name != NULL && name->value == EK__NO_PARAMETER;
    if (!module && !is_parameter(layout, name)) continue;
    if (strncmp(name->name, within, strlen(within)) != 0) continue;
    const size_t now = distance(wanted, name->name);
    if (now > least || (now == least && strcmp(name->name, nearest) > 0)) continue;
    least = now;
    nearest = name->name;
  }
  return nearest;
}

const char *ek__layout_nearest(const struct ek__layout *layout, const char *wanted,
                               const char *within) {
  return nearest_name(layout, wanted, within, true);
}

static ek_status refuse(const struct ek__layout *layout, const char *pattern) {
  const char *nearest = nearest_name(layout, pattern, "", false);
  EK__FAIL_IF(nearest == NULL, EK_ERR_NOT_FOUND,
              "the pattern \"%.64s\" matches no parameter: the model has no parameters", pattern);
  return ek_error_set(EK_ERR_NOT_FOUND,
                      "the pattern \"%.64s\" matches no parameter; the nearest name is \"%.128s\"",
                      pattern, nearest);
}

static ek_status check(const ek_parameter_pattern *p, size_t index) {
  EK__FAIL_IF(p->pattern == NULL || p->pattern[0] == '\0', EK_ERR_INVALID_ARGUMENT,
              "pattern number %zu is NULL or empty, expected the name of a parameter", index);
  EK__FAIL_IF(
      !(p->rate_scale >= 0 && isfinite(p->rate_scale) && p->weight_decay >= 0 &&
        isfinite(p->weight_decay)),
      EK_ERR_INVALID_ARGUMENT,
      "the pattern \"%.64s\" has rate_scale %g and weight_decay %g, expected finite numbers "
      ">= 0",
      p->pattern, p->rate_scale, p->weight_decay);
  if (!p->no_decay || p->weight_decay == 0) return EK_OK;
  return ek_error_set(
      EK_ERR_INVALID_ARGUMENT,
      "the pattern \"%.64s\" has no_decay and weight_decay %g, expected one of them", p->pattern,
      p->weight_decay);
}

/* *last, one per parameter: 1 + number of the last pattern that matches one of its names. */
static ek_status match(size_t *last, const struct ek__layout *layout,
                       const ek_parameter_pattern *patterns, size_t count) {
  for (size_t k = 0; k < count; k++) {
    bool any = strcmp(patterns[k].pattern, "*") == 0;
    for (size_t i = 0; i < layout->names.capacity; i++) {
      const struct ek__name *name = &layout->names.places[i];
      if (!is_parameter(layout, name) || !matches(patterns[k].pattern, name->name)) continue;
      last[name->value] = k + 1;
      any = true;
    }
    if (!any) return refuse(layout, patterns[k].pattern);
  }
  return EK_OK;
}

/* The number of the group that is like this one; it is added if necessary. There is room for it. */
static size_t group_like(struct ek__layout *layout, struct ek__group group) {
  for (size_t i = 0; i < layout->group_count; i++) {
    const struct ek__group *g = &layout->groups[i];
    if (g->no_decay == group.no_decay && g->rate_scale == group.rate_scale &&
        g->weight_decay == group.weight_decay) {
      return i;
    }
  }
  layout->groups[layout->group_count] = group;
  return layout->group_count++;
}

static void apply(struct ek__layout *layout, struct ek__parameter *parameter,
                  const ek_parameter_pattern *p) {
  struct ek__group group = {parameter->no_decay, 1, 0};
  if (p != NULL) {
    parameter->frozen = parameter->frozen || p->frozen;
    parameter->elementwise = parameter->elementwise || p->elementwise;
    parameter->no_decay = p->no_decay || (parameter->no_decay && p->weight_decay == 0);
    group = (struct ek__group){parameter->no_decay, p->rate_scale == 0 ? 1 : p->rate_scale,
                               p->weight_decay};
  }
  if (!parameter->frozen) parameter->group = group_like(layout, group);
}

ek_status ek__layout_group(struct ek__layout *layout, const ek_parameter_pattern *patterns,
                           size_t count) {
  size_t *last = NULL;
  EK__FAIL_IF(patterns == NULL && count > 0, EK_ERR_INVALID_ARGUMENT,
              "the array of %zu patterns of parameters is NULL", count);
  for (size_t i = 0; i < count; i++) EK_TRY(check(&patterns[i], i));
  /* A pattern makes at most two groups: of parameters declared with decay, and without. */
  EK_TRY(ek__new(&layout->groups, 2 + 2 * count, sizeof *layout->groups, memory_of));
  (void)group_like(layout, (struct ek__group){true, 1, 0});
  (void)group_like(layout, (struct ek__group){false, 1, 0});
  EK_TRY(ek__new(&last, layout->parameter_count, sizeof *last, memory_of));
  const ek_status status = match(last, layout, patterns, count);
  for (size_t i = 0; i < layout->parameter_count && status == EK_OK; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (!p->buffer) apply(layout, p, last[i] == 0 ? NULL : &patterns[last[i] - 1]);
  }
  for (size_t i = 0; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (p->frozen) p->group = layout->group_count;
  }
  ek__free(last);
  return status;
}
