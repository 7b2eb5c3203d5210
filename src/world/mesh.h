/*
 * mesh.h - the wire over stream sockets: one connection between every two processes.
 */
#ifndef EK_MESH_H
#define EK_MESH_H

#include "world/wire.h"

/*
 * Makes a wire of connected sockets, which it closes, also if it fails: sockets[p] leads to process
 * p; that of this process is not looked at. TCP, or another kind of stream.
 */
ek_status ek__mesh_make(struct ek__wire *wire, size_t process, size_t processes,
                        const int *sockets);

#endif /* EK_MESH_H */
