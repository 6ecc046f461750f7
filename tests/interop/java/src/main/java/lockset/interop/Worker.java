package lockset.interop;

import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;

/** A thread that does what it is given, in order: to Redisson, an owner of locks. */
final class Worker {
    private final BlockingQueue<Runnable> work = new LinkedBlockingQueue<>();
    private final Thread thread = new Thread(this::loop);

    Worker() {
        thread.setDaemon(true);
        thread.start();
    }

    void run(Runnable task) {
        work.add(task);
    }

    void interrupt() {
        thread.interrupt();
    }

    /** Whether it sleeps until a message: one that comes before, Redisson may lose. */
    boolean isAsleep() {
        return Arrays.stream(thread.getStackTrace())
                .anyMatch(frame -> frame.getClassName().equals(Semaphore.class.getName()));
    }

    private void loop() {
        while (true) {
            try {
                work.take().run();
            } catch (InterruptedException late) {
                // Meant for work that was done by then.
            }
        }
    }
}
