# Rewrites a source of CUDA (sed -z -E): a kernel that has __launch_bounds__ begins by saying its bound,
# when it is asked (cuemu::bounded() in include/cuemu_device.h). Lines stay where they are.
s/__global__([^{;]*)__launch_bounds__\(([^)]*)\)([^{;]*)\{/\1\3{ if (cuemu::bounded(\2)) return;/g
# A launch as nvcc has it, with all four of its arguments, in one form that C++ can parse.
s/([A-Za-z0-9_]+)<<<([^<>;]*)>>>\(/EK_LAUNCH(\1, \2, /g
