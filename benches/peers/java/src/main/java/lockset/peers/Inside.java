package lockset.peers;

import java.util.concurrent.atomic.AtomicLong;

/** Who is inside a lock right now, as this process sees it: the check of exclusion. */
final class Inside {
    /** A writer counts as this many, so that one number says it all. */
    private static final long WRITER = 1L << 32;

    private final AtomicLong now = new AtomicLong();
    private final AtomicLong violations = new AtomicLong();

    void enter(boolean reading) {
        long others = now.getAndAdd(reading ? 1 : WRITER);
        if (others >= WRITER || (!reading && others > 0)) {
            violations.incrementAndGet();
        }
    }

    void leave(boolean reading) {
        now.addAndGet(reading ? -1 : -WRITER);
    }

    long violations() {
        return violations.get();
    }
}
