/*
 * weights_config.h - whether config.json beside a file of weights speaks of the same model.
 */
#ifndef EK_WEIGHTS_CONFIG_H
#define EK_WEIGHTS_CONFIG_H

#include "module/layout.h"

/*
 * Compares config.json in the folder of `path`, if there is one, with what the modules of the
 * layout declare (ek_module_ops.facts). Keys that no module declares, and null, are ignored.
 * EK_ERR_INVALID_ARGUMENT for another value, EK_ERR_CORRUPT if it is not a JSON object, EK_ERR_IO
 * if the file cannot be read.
 */
ek_status ek__config_check(const struct ek__layout *layout, const char *path);

#endif /* EK_WEIGHTS_CONFIG_H */
