/* Opens two devices through the installed headers and library. */
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
  if (ek_version() != EK_VERSION) return 1;
  printf("evenkeel %s from C: %s\n", ek_version_string(), ek_status_text(EK_OK));
  return strcmp(ek_status_name(EK_OK), "EK_OK") != 0;
}
