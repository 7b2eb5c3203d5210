/*
 * tile_table.c - the functions on tiles of one kind as a table, for the dispatcher.
 */
#include "backend/cpu/tiles/tile.h"

extern const struct ek__cpu_tile_functions EK_ISA_NAME(cpu_tile_functions);
const struct ek__cpu_tile_functions EK_ISA_NAME(cpu_tile_functions) = {
#define MEMBER(name) .name = EK_ISA_NAME(name),
    EK__CPU_TILE_FUNCTION_LIST(MEMBER)};
