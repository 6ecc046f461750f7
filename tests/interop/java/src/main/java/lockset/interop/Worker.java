package lockset.interop;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

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
