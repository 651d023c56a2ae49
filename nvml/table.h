#ifndef HEADROOM_NVML_TABLE_H
#define HEADROOM_NVML_TABLE_H

// Opens the library at path and fills the table in; what it lacks goes on
// answering NVML_ERROR_FUNCTION_NOT_FOUND. Returns 0, or -1 if it cannot be opened.
int headroom_nvml_load(const char *path);

#endif
