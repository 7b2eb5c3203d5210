// The same as main.c, from C++.
#include <cstring>
#include <iostream>
#include <memory>

#include <evenkeel/evenkeel.h>

int main() {
  ek_group *opened = nullptr;
  if (ek_group_open(&opened, "cpu:2", nullptr) != EK_OK) {
    std::cerr << ek_error_message() << '\n';
    return 1;
  }
  const std::unique_ptr<ek_group, decltype(&ek_group_free)> group(opened, &ek_group_free);
  if (ek_group_size(group.get()) != 2) return 1;
  ek_module *module = nullptr;
  ek_check_input x = {};
  x.rank = 2, x.shape[0] = 4, x.shape[1] = 3, x.low = -1, x.high = 1;
  if (ek_activation_create(&module, EK_ACTIVATION_GELU) != EK_OK ||
      ek_module_check(module, "cpu:2", &x, 1, nullptr) != EK_OK) {
    std::cerr << ek_error_message() << '\n';
    return 1;
  }
  ek_module_free(module);
  std::cout << "evenkeel " << ek_version_string() << " from C++: " << ek_status_text(EK_OK) << '\n';
  return std::strcmp(ek_status_name(EK_OK), "EK_OK") != 0;
}
