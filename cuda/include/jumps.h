/* Functions of a library that is looked for at run time, under their own names:
   so code that calls them links, and the program starts where there is no such
   library. Whoever includes this fills the slots when the library is there. The
   build cache does not see changes of this file: build with -a after one. */
#ifndef HEADROOM_JUMPS_H
#define HEADROOM_JUMPS_H

#if defined(__x86_64__)
#define HEADROOM_JUMP(name) "\tjmp *slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define HEADROOM_JUMP(name)            \
  "\tadrp x16, slot_" #name "\n"       \
  "\tldr x16, [x16, :lo12:slot_" #name "]\n" \
  "\tbr x16\n"
#else
#error "jumps through a table are written for x86-64 and 64-bit Arm"
#endif

/* A slot, slot_NAME, that leads to answer until it is filled and, under the name
   itself, a jump through it. A jump leaves registers and stack as the caller set
   them up, so it serves any signature. The names are hidden: exported, they would
   stand in front of the library's own when libraries look each other up. */
#define HEADROOM_SLOT(name, answer)                                             \
  __attribute__((used, visibility("hidden"))) int (*slot_##name)(void) = answer; \
  __asm__(".pushsection .text\n\t.globl " #name "\n\t.type " #name ", @function\n" #name ":\n" \
          HEADROOM_JUMP(name) "\t.size " #name ", . - " #name "\n\t.hidden " #name "\n\t.popsection\n");

#endif
