/* Defines functions of a library that is opened at run time, under their own
   names. Code that calls them then links, and the program starts even on a machine
   without the library. The file that includes this header fills the slots once the
   library is open. Go's build cache does not notice changes to this header: build
   with -a after a change. */
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

/* Defines the slot slot_NAME, which points to the function answer until it is
   filled, and the function NAME, which jumps through the slot. A jump leaves
   registers and stack as the caller set them up, so it works for any signature. The
   names are hidden: if they were exported, other libraries would find them instead
   of the library's own functions. */
#define HEADROOM_SLOT(name, answer)                                             \
  __attribute__((used, visibility("hidden"))) int (*slot_##name)(void) = answer; \
  __asm__(".pushsection .text\n\t.globl " #name "\n\t.type " #name ", @function\n" #name ":\n" \
          HEADROOM_JUMP(name) "\t.size " #name ", . - " #name "\n\t.hidden " #name "\n\t.popsection\n");

#endif
