/*
 * address.h - addresses of processes: found by name, listened at, connected to. Every function that
 * waits has a deadline, in seconds of ek__clock().
 */
#ifndef EK_ADDRESS_H
#define EK_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>

enum { EK__PLACES = 16, EK__PLACE_TEXT = 96 };

/* Where a process listens. In messages as it is: all members have fixed sizes. */
struct ek__place {
  uint16_t family; /* 4, 6; 0: none */
  uint16_t port;   /* in the host's order, as is the scope */
  uint32_t scope;  /* of a link-local address */
  unsigned char address[16];
};

struct ek__places {
  size_t count;
  struct ek__place places[EK__PLACES];
};

double ek__clock(void);

/* "10.0.0.7:29500" or "[fe80::1]:29500". Returns `text`. */
const char *ek__place_text(char text[EK__PLACE_TEXT], const struct ek__place *place);
bool ek__place_is_loopback(const struct ek__place *place);

/* Appends the addresses of a host's name, or of an address as text; those for which there is no
 * room are left out. EK_ERR_NOT_FOUND: the name is not known (which may change). */
ek_status ek__places_find(struct ek__places *places, const char *host, uint16_t port);

/* The first host of a list as Slurm has it: "n[003-010,12],m7" gives n003. False: there is none, or
 * `size` is no room for it. */
bool ek__first_host(char *host, size_t size, const char *list);

/* The address of this machine that `text` means: a network interface, a name or an address, in this
 * family if it has one in it (0: any). EK_ERR_INVALID_ARGUMENT: it means none. */
ek_status ek__place_own(struct ek__place *place, const char *text, uint16_t family);

/* Appends the addresses that others may reach this machine at, those of loopback last. */
ek_status ek__places_own(struct ek__places *places, uint16_t port);

/* Opens a socket that listens at a place, or with family 0 at every address; port 0: any. Fills in
 * the port. EK_ERR_UNAVAILABLE: the system refuses; errno says why. */
ek_status ek__listen(int *socket, struct ek__place *place);

/* A connection, or -1 and a text. Waits until the deadline at most. */
int ek__connect(const struct ek__place *place, double deadline, const char **why);

/* The address of this end of a connection, and the port 0. */
bool ek__place_of_socket(struct ek__place *place, int socket);

#endif /* EK_ADDRESS_H */
