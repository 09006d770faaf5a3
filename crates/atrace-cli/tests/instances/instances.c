// Makes a directory of ordinary files behave like tracefs: a new directory in `instances` gets the files in $INSTANCE, and
// is removed with its files.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef int (*make)(const char *, mode_t);
typedef int (*drop)(const char *);

// Runs a command of the shell on the path, if the path is that of an instance.
static int on_instance(const char *format, const char *path) {
  char command[512];
  const char *name = strstr(path, "/instances/");
  if (!name || strchr(name + strlen("/instances/"), '/')) return 0;
  snprintf(command, sizeof command, format, path);
  return system(command);
}

int mkdir(const char *path, mode_t mode) {
  if (((make)dlsym(RTLD_NEXT, "mkdir"))(path, mode)) return -1;
  return on_instance("LD_PRELOAD= cp -r \"$INSTANCE\"/. %s", path) ? -1 : 0;
}

int rmdir(const char *path) {
  if (on_instance("LD_PRELOAD= rm -r %s/*", path)) return -1;
  return ((drop)dlsym(RTLD_NEXT, "rmdir"))(path);
}
