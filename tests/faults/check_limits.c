/*
 * check_limits.c - the memory limit of a container, read from files as Linux shows them.
 *
 * The source of the library that reads them is compiled in: it takes the root folder, which here
 * is one that the test wrote.
 */
#include "ek_check.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

/* src/backend/cpu/cpu_limits.h */
struct ek__cpu_limit {
  uint64_t bytes, free;
};
struct ek__cpu_limit ek__cpu_memory_limit(const char *root);

#define MIB ((uint64_t)1 << 20)
#define NONE UINT64_MAX

static char root[] = "/tmp/check_limits.XXXXXX";

/* Writes a file below the root, with the folders that it needs. */
static void put(const char *path, const char *text) {
  char whole[4096];
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash != NULL;
       slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    (void)mkdir(whole, 0700);
    *slash = '/';
  }
  FILE *file = fopen(whole, "w");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_ge(fputs(text, file), 0);
  ck_assert_int_eq(fclose(file), 0);
}

static void limit_is(uint64_t bytes, uint64_t left) {
  const struct ek__cpu_limit limit = ek__cpu_memory_limit(root);
  ck_assert_uint_eq(limit.bytes, bytes);
  ck_assert_uint_eq(limit.free, left);
}

static void start(void) {
  ck_assert_ptr_nonnull(mkdtemp(strcpy(root, "/tmp/check_limits.XXXXXX")));
}

static void finish(void) { ck_assert_int_eq(system(ck_text("rm -rf '%s'", root)), 0); }

/* The first test of the program: what the library keeps is the first that it finds. */
CK_TEST(what_is_kept_holds_for_one_group) {
  put("/proc/self/cgroup", "0::/a\n");
  put("/proc/self/mountinfo", "31 23 0:28 / /first rw - cgroup2 cgroup2 rw\n");
  put("/first/a/memory.max", "104857600\n");
  limit_is(100 * MIB, 100 * MIB);
  put("/proc/self/mountinfo", "31 23 0:28 / /second rw - cgroup2 cgroup2 rw\n");
  put("/first/a/memory.max", "52428800\n"); /* the place is kept, not the limit */
  put("/second/b/memory.max", "1048576\n");
  limit_is(50 * MIB, 50 * MIB);
  put("/proc/self/cgroup", "0::/b\n");
  limit_is(MIB, MIB);
  put("/proc/self/cgroup", "0::/a\n");
  limit_is(50 * MIB, 50 * MIB);
}

CK_TEST(no_files_are_no_limit) {
  limit_is(NONE, NONE);
  put("/proc/self/cgroup", "");
  limit_is(NONE, NONE);
  put("/proc/self/cgroup", "0::/\n");
  limit_is(NONE, NONE);
  put("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  limit_is(NONE, NONE);
  put("/sys/fs/cgroup/memory.max", "max\n");
  limit_is(NONE, NONE);
  put("/sys/fs/cgroup/memory.max", "");
  limit_is(NONE, NONE);
}

/* Version 2, as a container with a name space of its own sees it, and as the machine does. */
CK_TEST(version_2) {
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo",
      "1 2 0:1 / / rw - ext4 /dev/root rw\n"
      "31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup rw\n");
  put("/sys/fs/cgroup/memory.max", "209715200\n");
  limit_is(200 * MIB, 200 * MIB);
  put("/sys/fs/cgroup/memory.current", "52428800\n");
  limit_is(200 * MIB, 150 * MIB);
  put("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 20971520\nactive_file 7\n");
  limit_is(200 * MIB, 170 * MIB);
  put("/sys/fs/cgroup/memory.current", "309715200\n");
  limit_is(200 * MIB, 0);
  /* Two levels: the tighter one may be the upper. */
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/memory.max", "max\n");
  put("/sys/fs/cgroup/a/memory.max", "104857600\n");
  put("/sys/fs/cgroup/a/memory.current", "94371840\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  limit_is(100 * MIB, 10 * MIB);
  put("/sys/fs/cgroup/a/b/memory.max", "73400320\n");
  limit_is(70 * MIB, 10 * MIB);
}

/* A container that shares the name space: the mount shows the group's own folder. */
CK_TEST(a_mount_of_a_folder) {
  put("/proc/self/cgroup", "0::/docker/abc/inner\n");
  put("/proc/self/mountinfo",
      "31 23 0:28 /docker/abc /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n");
  put("/sys/fs/c group/memory.max", "104857600\n");
  put("/sys/fs/c group/inner/memory.max", "52428800\n");
  limit_is(50 * MIB, 50 * MIB);
  put("/proc/self/cgroup", "0::/docker/abcdef\n"); /* not below the mount */
  limit_is(100 * MIB, 100 * MIB);
  put("/proc/self/cgroup", "0::/../elsewhere\n");
  limit_is(100 * MIB, 100 * MIB);
}

CK_TEST(version_1) {
  put("/proc/self/cgroup", "5:devices:/\n4:cpu,memory:/a\n1:name=systemd:/memory\n0::/\n");
  put("/proc/self/mountinfo", "30 1 0:1 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
                              "31 1 0:2 / /cg/memory rw - cgroup cgroup rw,cpu,memory\n"
                              "32 1 0:3 / /cg/unified rw - cgroup2 cgroup2 rw\n");
  put("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
  limit_is(NONE, NONE);
  put("/cg/memory/a/memory.limit_in_bytes", "209715200\n");
  put("/cg/memory/a/memory.usage_in_bytes", "104857600\n");
  put("/cg/memory/a/memory.stat", "cache 5\ninactive_file 1\ntotal_inactive_file 4194304\n");
  limit_is(200 * MIB, 104 * MIB);
  put("/cg/unified/memory.max", "1048576\n");
  limit_is(MIB, MIB);
}

CK_TEST(damaged_files_are_no_limit) {
  static char longest[20000];
  memset(longest, 'x', sizeof longest - 1);
  longest[0] = '0', longest[1] = longest[2] = ':', longest[3] = '/';
  put("/proc/self/cgroup", longest);
  put("/proc/self/mountinfo", "31 23 0:28 / /c - cgroup2 cgroup2 rw\n");
  put("/c/memory.max", "1048576\n");
  limit_is(NONE, NONE);
  put("/proc/self/cgroup", "::\n:\n\n0:\n0::\n");
  limit_is(MIB, MIB); /* a group without a name is the mount point */
  put("/proc/self/mountinfo", "\n - \n - cgroup2\n1 2 - cgroup2 a b\n31 23 0:28 / /c cgroup2\n");
  limit_is(NONE, NONE);
  put("/c/memory.max", "-5\n");
  put("/proc/self/mountinfo", "31 23 0:28 / /c - cgroup2 cgroup2 rw\n");
  limit_is(NONE, NONE);
  /* A long line of another mount does not hide what comes after it. */
  put("/c/memory.max", "1048576");
  longest[sizeof longest - 2] = '\n';
  put("/proc/self/mountinfo", longest);
  FILE *file = fopen(ck_text("%s/proc/self/mountinfo", root), "a");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_ge(fputs("31 23 0:28 / /c - cgroup2 cgroup2 rw", file), 0);
  ck_assert_int_eq(fclose(file), 0);
  limit_is(MIB, MIB);
}

CK_SUITE_WITH("limits", start, finish)
