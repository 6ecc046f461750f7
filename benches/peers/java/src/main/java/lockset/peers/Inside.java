package lockset.peers;

import java.util.concurrent.atomic.AtomicLong;

/** Who is inside a lock right now, as this process sees it: the check of exclusion. */
final class Inside {
    /** A writer counts as this many, so that one number says it all. */
    private static final long WRITER = 1L << 32;

    /** How many may be inside that share. */
    private final long most;
    private final AtomicLong now = new AtomicLong();
    private final AtomicLong violations = new AtomicLong();

    Inside(long permits) {
        most = permits > 0 ? permits : WRITER;
    }

    void enter(boolean sharing) {
        long others = now.getAndAdd(sharing ? 1 : WRITER);
        if (others >= most || (!sharing && others > 0)) {
            violations.incrementAndGet();
        }
    }

    void leave(boolean sharing) {
        now.addAndGet(sharing ? -1 : -WRITER);
    }

    long violations() {
        return violations.get();
    }
}
