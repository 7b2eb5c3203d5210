/* Opens two devices and checks a module through the installed headers and libraries. */
#include <stdio.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

int main(void) {
  ek_group *group = NULL;
  if (ek_group_open(&group, "cpu:2", NULL) != EK_OK) {
    fprintf(stderr, "%s\n", ek_error_message());
    return 1;
  }
  const size_t size = ek_group_size(group);
  ek_group_free(group);
  if (size != 2) return 1;
  ek_module *module = NULL;
  const ek_check_input x = {.rank = 2, .shape = {4, 3}, .low = -1, .high = 1};
  if (ek_activation_create(&module, EK_ACTIVATION_GELU) != EK_OK ||
      ek_module_check(module, "cpu:2", &x, 1, NULL) != EK_OK) {
    fprintf(stderr, "%s\n", ek_error_message());
    return 1;
  }
  ek_module_free(module);
  if (ek_version() != EK_VERSION) return 1;
  printf("evenkeel %s from C: %s\n", ek_version_string(), ek_status_text(EK_OK));
  return strcmp(ek_status_name(EK_OK), "EK_OK") != 0;
}
