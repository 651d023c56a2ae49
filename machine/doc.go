// Package machine reports what this machine offers a program, according to the operating
// system: its memory and how much of it the control groups allow, its disk space, the
// resource limits of the process, and anything that could end a long run early. It also
// lists the processes of the machine, and the files that they have open.
//
// Start with [Look], or with [LookAtMemory] and [Memory.Room] if only memory matters. Look
// and LookAtMemory take milliseconds. They change nothing, except that Look creates an
// empty file and removes it again. A fact that the system does not report is never an
// error: its field keeps the zero value.
package machine
