// Package driver connects the program to NVIDIA's driver when asked to, and not
// before, so that one binary runs on machines with and without one.
//
// gorgonia.org/cu calls the driver's functions by name and calls cuInit from a
// package initialiser; a program that links libcuda therefore does not start
// where there is none. This package defines those functions itself, as jumps
// through a table. Until [Load] the table answers that there is no device
// (cuInit: success, so that the initialiser passes). Load opens libcuda.so.1 and
// fills the table in.
//
// Without the build tag cuda the package has none of this, and Load returns an
// error that says that the program was built without GPU support.
package driver
