/*
 * weights_config.h - whether config.json beside a file of weights speaks of the same model.
 */
#ifndef EK_WEIGHTS_CONFIG_H
#define EK_WEIGHTS_CONFIG_H

#include "module/layout.h"

/*
 * Compares config.json in the folder of `path`, if there is one, with what the modules of the
 * layout declare (ek_module_ops.facts). Keys that no module declares, and null, say nothing.
 * EK_ERR_INVALID_ARGUMENT for another value, EK_ERR_CORRUPT for what is no object of JSON,
 * EK_ERR_IO where the file cannot be read.
 */
ek_status ek__config_check(const struct ek__layout *layout, const char *path);

#endif /* EK_WEIGHTS_CONFIG_H */
