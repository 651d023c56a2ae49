// Package driver connects the program to NVIDIA's driver when [Load] is called,
// and not before, so that one binary runs on machines with and without a
// driver.
//
// gorgonia.org/cu calls the driver's functions by name and calls cuInit from a
// package initialiser; a program that links libcuda would therefore not start on
// a machine without it. This package defines those functions itself, as jumps
// through a table. Until Load is called, every function reports that there is no
// device, except cuInit, which reports success so that the initialiser passes.
// Load opens libcuda.so.1 and fills in the table.
//
// Without the build tag cuda, none of this is compiled, and Load returns an
// error that says that the program was built without GPU support.
package driver
